"""The models with one part taken out: that part is gone, everything else is as it was."""

import dataclasses
from functools import cache

import pytest
import torch
from torch.nn.functional import linear

from tested_transformer.analysis.translation import translate
from tested_transformer.data import BOS, EOS, pad, single_numbers
from tested_transformer.experiments.ch10_ablation import (
    ABLATIONS,
    CONFIGS,
    RECIPES,
    trainer_without,
)
from tested_transformer.experiments.ch10_number_models import number_trainer
from tested_transformer.layers.feed_forward import FeedForward
from tested_transformer.layers.multi_head import MultiHeadAttention
from tested_transformer.layers.norms import LayerNorm
from tested_transformer.training.trainer import Recipe

SMALL = {"d_model": 16, "num_heads": 2}
GONE = {"feed-forward network": "feed_forward", "layer norm": "norm", "cross-attention": "cross"}


@cache
def split():
    """Every word, and few sentences."""
    return single_numbers(train=200, test=20)


def without(what, **options):
    """A small trainer."""
    return trainer_without(what, split=split(), **SMALL, **options)


def model_without(what):
    """The model alone, in float64."""
    return without(what, steps=1).model.eval().double()


def ids(*rows):
    return pad([list(row) for row in rows])


SOURCE = ids([5, 6, 7, 8, EOS], [9, 10, EOS])
TARGET = ids([BOS, 11, 12, 13], [BOS, 14])


def test_nothing_is_the_books_own_model():
    ours, theirs = without("nothing", steps=3, seed=4), number_trainer(
        Recipe(steps=3, seed=4), split=split(), **SMALL
    )  # fmt: skip
    assert ours.recipe == theirs.recipe
    assert ours.model.config == theirs.model.config
    assert ours.run(progress=False).losses == theirs.run(progress=False).losses
    mine, other = ours.model.state_dict(), theirs.model.state_dict()
    assert list(mine) == list(other)
    assert all(torch.equal(mine[name], other[name]) for name in mine)


@pytest.mark.parametrize("what", ABLATIONS)
def test_what_stays_is_as_it_was(what):
    whole, ours = without("nothing", steps=3), without(what, steps=3)
    before, after = (dict(t.model.named_parameters()) for t in (whole, ours))
    assert set(after) <= set(before)
    gone = set(before) - set(after)
    assert gone == {name for name in before if what in GONE and GONE[what] in name}
    for name, parameter in after.items():
        rows = slice(1, None) if what == "padding mask" and "table" in name else slice(None)
        assert torch.equal(parameter[rows], before[name][rows]), name
    changed = dataclasses.asdict(ours.model.config).items() - (
        dataclasses.asdict(whole.model.config).items()
    )
    assert dict(changed) == CONFIGS.get(what, {})
    assert ours.recipe == dataclasses.replace(whole.recipe, **RECIPES.get(what, {}))
    assert ours.pairs == whole.pairs


@pytest.mark.parametrize("what", [name for name in ABLATIONS if name not in ("nothing", *RECIPES)])
def test_something_is_gone(what):
    answers = [model_without(name)(SOURCE, TARGET) for name in ("nothing", what)]
    assert (answers[0] - answers[1]).abs().max() > 1e-3


@pytest.mark.parametrize("what", ABLATIONS)
def test_it_trains_and_generates(what):
    trainer = without(what, steps=4)
    assert torch.tensor(trainer.run(progress=False).losses).isfinite().all()
    sentences = [pair.source for pair in split().test[:4]]
    words = trainer.source, trainer.target
    said = [
        translate(trainer.model.double(), sentences, *words, max_new=5, cache=cache)
        for cache in (True, False)
    ]
    assert said[0] == said[1]
    assert len(translate(trainer.model, sentences, *words, max_new=5, num_beams=2)) == 4


@pytest.mark.parametrize("what", ABLATIONS)
def test_it_shows_its_weights(what):
    model = model_without(what)
    logits, weights = model(SOURCE, TARGET, return_weights=True)
    torch.testing.assert_close(logits, model(SOURCE, TARGET))
    shown = (weights.encoder, weights.decoder, weights.cross)
    assert [len(layers) for layers in shown] == [2, 2, 2]
    assert all(layer.shape[2:] == (4, 5) for layer in weights.cross)


def test_scale_is_the_softmax_of_the_bare_products():
    model, x = model_without("scale"), torch.randn(2, 5, 16, dtype=torch.float64)
    layers = [layer for layer in model.modules() if isinstance(layer, MultiHeadAttention)]
    assert len(layers) == 6
    for layer in layers:
        query, key, value = (
            linear(x, part.weight, part.bias).unflatten(-1, (2, 8)).transpose(1, 2)
            for part in (layer.query, layer.key, layer.value)
        )
        expected = (query @ key.mT).softmax(-1)
        output, weights = layer(x, return_weights=True)
        torch.testing.assert_close(weights, expected)
        torch.testing.assert_close(
            output, layer.output((expected @ value).transpose(1, 2).flatten(2))
        )
        torch.testing.assert_close(layer(x), output)  # the fused kernel too


@pytest.mark.parametrize(("what", "moves"), [("nothing", False), ("causal mask", True)])
def test_causal_mask_every_place_sees_every_word(what, moves):
    model, target = model_without(what), torch.tensor([[BOS, 5, 6, 7]])
    before = model(SOURCE[:1], target)
    for place in range(1, 4):
        other = target.clone()
        other[0, place] = 9
        change = (model(SOURCE[:1], other) - before)[0, :place].abs().amax(-1)
        assert bool((change > 1e-6).all()) is moves


def test_causal_mask_alone_is_gone():
    model, whole = model_without("causal mask"), model_without("nothing")
    assert torch.equal(model.encode(SOURCE), whole.encode(SOURCE))
    alone = model(SOURCE[1:, :3], TARGET[1:, :2])
    torch.testing.assert_close(model(SOURCE, TARGET)[1:, :2], alone)  # padding stays hidden
    last = model(SOURCE[:1], TARGET[:1, :1]), whole(SOURCE[:1], TARGET[:1, :1])
    torch.testing.assert_close(*last)  # one word has no future


@pytest.mark.parametrize("what", ["positions", "positions in the encoder"])
def test_positions_a_shuffled_source_gives_a_shuffled_memory(what):
    model, order = model_without(what), torch.tensor([3, 0, 4, 2, 1])
    source = SOURCE[:1]
    torch.testing.assert_close(model.encode(source[:, order]), model.encode(source)[:, order])
    both = [model(s, TARGET[:1]) for s in (source, source[:, order])]
    torch.testing.assert_close(*both)
    whole = model_without("nothing")
    assert (whole.encode(source[:, order]) - whole.encode(source)[:, order]).abs().max() > 1e-3


def test_positions_in_the_encoder_leaves_the_decoder_its_own():
    model, whole = model_without("positions in the encoder"), model_without("nothing")
    memory = torch.randn(2, 5, 16, dtype=torch.float64)
    assert torch.equal(model.decode(TARGET, memory), whole.decode(TARGET, memory))


def test_positions_are_in_no_embedding():
    model, places = model_without("positions"), torch.tensor([[0, 1, 2, 3]])
    for embedding in (model.source_embedding, model.target_embedding):
        x = embedding(torch.tensor([[5, 5, 5, 5]]), places, 4)
        assert torch.equal(x, x[:, :1].expand_as(x))


def test_feed_forward_network_leaves_attention_alone():
    model, x = model_without("feed-forward network"), torch.randn(1, 5, 16, dtype=torch.float64)
    assert not any(isinstance(module, FeedForward) for module in model.modules())
    layer = model.encoder.layers[0]
    first, second = (residual.norm for residual in layer.residuals)
    torch.testing.assert_close(layer(x), second(first(x + layer.attention(x))))


def test_residual_connections_leave_the_answer_alone():
    model, x = model_without("residual connections"), torch.randn(1, 5, 16, dtype=torch.float64)
    for layer in model.encoder.layers:
        first, second = (residual.norm for residual in layer.residuals)
        expected = second(layer.feed_forward(first(layer.attention(x))))
        torch.testing.assert_close(layer(x), expected)


def test_layer_norm_leaves_the_sum():
    model, x = model_without("layer norm"), torch.randn(1, 5, 16, dtype=torch.float64)
    assert not any(isinstance(module, LayerNorm) for module in model.modules())
    for layer in model.encoder.layers:
        middle = x + layer.attention(x)
        torch.testing.assert_close(layer(x), middle + layer.feed_forward(middle))


def test_more_heads_leaves_one():
    _, weights = model_without("more heads")(SOURCE, TARGET, return_weights=True)
    assert {layer.shape[1] for layer in weights.encoder + weights.decoder + weights.cross} == {1}


@pytest.mark.parametrize(("what", "moves"), [("nothing", False), ("padding mask", True)])
def test_padding_mask_padding_changes_the_scores(what, moves):
    model = model_without(what)
    alone, padded = model(SOURCE[1:, :3], TARGET[1:, :2]), model(SOURCE, TARGET)[1:, :2]
    assert bool((alone - padded).abs().max() > 1e-6) is moves


def test_cross_attention_the_source_does_not_matter():
    model = model_without("cross-attention")
    both = [model(s, TARGET[:1]) for s in (SOURCE[:1], SOURCE[:1].flip(1))]
    assert torch.equal(*both)


def test_embedding_scale_is_one():
    model, places = model_without("embedding scale"), torch.tensor([[0, 1]])
    for embedding in (model.source_embedding, model.target_embedding):
        found = embedding(torch.tensor([[5, 6]]), places, 2)
        expected = embedding.table(torch.tensor([[5, 6]])) + embedding.positions(places)
        torch.testing.assert_close(found, expected)


def test_warm_up_starts_at_the_peak_and_cools_down():
    steps = range(1, 601)
    ours, whole = (without(what).recipe for what in ("warm-up", "nothing"))
    rates = [ours.rate_at(step, 16) for step in steps]
    assert rates[0] == max(rates) == pytest.approx(whole.rate, rel=1e-4)
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == whole.rate_at(600, 16)
    assert whole.rate_at(1, 16) == pytest.approx(whole.rate / 25)


def test_schedule_is_one_rate():
    recipe = without("schedule").recipe
    assert {recipe.rate_at(step, 16) for step in (1, 300, 600)} == {2e-3}


@pytest.mark.plain_types
@pytest.mark.parametrize("what", ["", "head", "Scale", None, 3])
def test_an_unknown_part_is_named(what):
    with pytest.raises(ValueError, match=r"what.*one of nothing, causal mask"):
        trainer_without(what)


@pytest.mark.plain_types
def test_an_unknown_size_is_refused():
    with pytest.raises(TypeError, match="d_modle"):
        trainer_without("scale", split=split(), d_modle=8)
