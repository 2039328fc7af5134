"""Recurrent translators: against NumPy step by step, padding, caches, beams, and what they cannot do."""

import copy

import pytest
import torch

from same_numbers import assert_same_numbers, in_dtype, shake
from tested_transformer import reference
from tested_transformer.analysis.translation import find_mistakes, translate
from tested_transformer.data import EOS, Vocabulary, pad, single_numbers
from tested_transformer.generation.beam_search import beam_search
from tested_transformer.generation.decoding_state import Seq2SeqState
from tested_transformer.models.recurrent import (
    RecurrentCache,
    RecurrentConfig,
    RecurrentTranslator,
    first_state,
)
from tested_transformer.training.trainer import Recipe, Trainer

SOURCE = pad([[5, 6, 7, 3], [8], [4, 4, 9]])
TARGET = pad([[1, 9, 4, 5, 10], [1, 7], [1, 6, 6]])

both_kinds = pytest.mark.parametrize("attention", [False, True], ids=["gru", "with attention"])


def own_model(attention, *, seed=0, dtype=torch.float64, **sizes):
    torch.manual_seed(seed)
    config = RecurrentConfig(12, 12, d_model=8, attention=attention, **sizes)
    return shake(RecurrentTranslator(config), seed).to(dtype).eval()


def slow_truth(model, source, target):
    """The reference, sentence by sentence, without its padding."""
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    for row, (said, written) in enumerate(zip(source.tolist(), target.tolist(), strict=True)):
        said, written = ([token for token in tokens if token] for tokens in (said, written))
        yield row, *reference.recurrent_translator(said, written, weights)


@both_kinds
@pytest.mark.parametrize("seed", range(3))
def test_against_the_reference(attention, seed):
    """Padded sources and targets give what each sentence gives alone."""
    model = own_model(attention, seed=seed, attention_size=5)
    with torch.no_grad():
        answer = model(SOURCE, TARGET, return_weights=attention)
    logits, weights = answer if attention else (answer, None)
    for row, wanted, looked in slow_truth(model, SOURCE, TARGET):
        length = len(wanted)
        found = logits[row, :length]
        torch.testing.assert_close(found, torch.from_numpy(wanted), rtol=0, atol=1e-13)
        if attention:
            places = looked.shape[1]
            found = weights[row, :length, :places]
            torch.testing.assert_close(found, torch.from_numpy(looked), rtol=0, atol=1e-14)
            assert not weights[row, :, places:].any()


@both_kinds
def test_float32_errs_no_more_than_the_formula_in_float32(attention):
    """Against a loop over nn.GRUCell and our own additive attention, gradients included."""
    model = own_model(attention, dtype=torch.float32)

    def outputs(twin, logits):
        loss = (logits * torch.linspace(-1, 1, logits.numel()).view_as(logits)).sum()
        loss.backward()
        return {"logits": [logits], "gradients": [p.grad for p in twin.parameters()]}

    def ours(dtype):
        twin = in_dtype(model, dtype)
        return outputs(twin, twin(SOURCE[:1], TARGET[:1]))

    def theirs(dtype):
        twin = in_dtype(model, dtype)
        memory, last = twin.encoder(twin.source_embedding(SOURCE[:1]))
        state, logits = last.transpose(0, 1).flatten(1), []
        for token in TARGET[0]:
            parts = []
            if attention:
                parts = [twin.attention(state[:, None], memory, memory)[:, 0]]
            word = twin.target_embedding(token)[None]
            state = twin.decoder(torch.cat([word, *parts], dim=-1), state)
            logits.append(twin.output(torch.cat([state, *parts], dim=-1)))
        return outputs(twin, torch.stack(logits, dim=1))

    assert_same_numbers(ours, theirs)


@both_kinds
def test_padding_of_the_source_changes_nothing(attention):
    model = own_model(attention)
    wider = torch.cat([SOURCE, torch.zeros_like(SOURCE)], dim=1)
    torch.testing.assert_close(model(wider, TARGET), model(SOURCE, TARGET), rtol=0, atol=1e-14)
    assert not model.encode(wider)[:, 4:].any()
    for row, length in enumerate((4, 1, 3)):
        alone = model(SOURCE[row : row + 1, :length], TARGET[row : row + 1])
        together = model(SOURCE, TARGET)[row : row + 1]
        torch.testing.assert_close(alone, together, rtol=0, atol=1e-14)


@both_kinds
def test_padding_of_the_target_leaves_the_state_alone(attention):
    model, source = own_model(attention), SOURCE[:1]
    whole = model(source, torch.tensor([[1, 9, 4]]))
    apart = model(source, torch.tensor([[0, 1, 0, 9, 0, 0, 4]]))
    torch.testing.assert_close(apart[:, [1, 3, 6]], whole, rtol=0, atol=1e-14)


@both_kinds
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_cached_equals_uncached(attention, chunk):
    model = own_model(attention)
    memory, visible, cache = model.encode(SOURCE), model.padding(SOURCE), model.new_cache()
    pieces = [
        model.decode(piece, memory, memory_mask=visible, cache=cache)
        for piece in TARGET.split(chunk, dim=1)
    ]
    whole = model(SOURCE, TARGET)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=0, atol=1e-14)


@both_kinds
def test_the_target_never_sees_its_future(attention):
    model, changed = own_model(attention), TARGET.clone()
    changed[:, 3:] = 11
    before = model(SOURCE, TARGET)[:, :3]
    assert torch.equal(model(SOURCE, changed)[:, :3], before)


def test_without_attention_only_the_last_states_are_known():
    """The memory between first and last place may be anything: attention reads it, a bare GRU cannot."""
    target = TARGET[:1]
    for attention in (False, True):
        model = own_model(attention)
        memory = model.encode(SOURCE[:1])
        changed = memory.clone()
        changed[:, 1:3] += 1.0
        changed[:, 0, :4] += 1.0  # what the forward direction knew at the first word
        same = torch.equal(model.decode(target, changed), model.decode(target, memory))
        assert same is not attention


def test_first_state_reads_where_each_direction_ends():
    memory = torch.arange(24.0).view(2, 3, 4)
    real = torch.tensor([[True, True, True], [True, True, False]])
    assert first_state(memory, real).tolist() == [[8.0, 9.0, 2.0, 3.0], [16.0, 17.0, 14.0, 15.0]]


@both_kinds
def test_every_weight_gets_a_gradient(attention):
    model = own_model(attention)
    model(SOURCE, TARGET).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    for table in (model.source_embedding, model.target_embedding):
        assert not table.weight.grad[0].any()


@both_kinds
@pytest.mark.parametrize("beams", [1, 3])
def test_translations_are_the_same_with_and_without_a_cache(attention, beams):
    words = Vocabulary(list("abcdefgh"))
    for seed in range(5):
        model = own_model(attention, seed=seed)
        with torch.no_grad():
            model.output.weight.mul_(3.0)
        sentences = [list("abc"), list("h"), list("ggfa")]
        options = {"max_new": 9, "num_beams": beams}
        found = translate(model, sentences, words, words, **options)
        assert translate(model, sentences, words, words, **options, cache=False) == found
        for sentence, said in zip(sentences, found, strict=True):
            assert translate(model, [sentence], words, words, **options) == [said]


@both_kinds
def test_the_score_of_a_beam_is_the_score_of_its_words(attention):
    model = own_model(attention)
    start = torch.ones(3, 1, dtype=torch.long)
    found = beam_search(Seq2SeqState(model, SOURCE), start, num_beams=3, max_new=6)
    logits = model(SOURCE, torch.cat([start, found.tokens[:, :-1]], dim=1)).log_softmax(-1)
    each = logits.gather(-1, found.tokens[..., None])[..., 0]
    for row, tokens in enumerate(found.tokens.tolist()):
        length = tokens.index(EOS) + 1 if EOS in tokens else len(tokens)
        score = each[row, :length].sum() / length
        assert abs(score.item() - found.scores[row].item()) < 1e-6


def test_rows_of_a_cache():
    model = own_model(True)
    cache, rows = model.new_cache(), torch.tensor([2, 0, 2])
    memory, visible = model.encode(SOURCE), model.padding(SOURCE)
    model.decode(TARGET[:, :2], memory, memory_mask=visible, cache=cache)
    cache.reorder(rows)
    found = model.decode(TARGET[rows, 2:], memory[rows], memory_mask=visible[rows], cache=cache)
    torch.testing.assert_close(found, model(SOURCE, TARGET)[rows, 2:], rtol=0, atol=1e-14)
    with pytest.raises(RuntimeError, match="the cache is empty"):
        RecurrentCache().reorder(rows)


def test_no_token_is_padding_if_none_is_named():
    model = own_model(True, pad_id=None)
    assert model.padding(SOURCE) is None
    zeros = model(torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, 2, dtype=torch.long))
    assert not torch.equal(zeros[:, 0], zeros[:, 1])


@both_kinds
def test_the_trainer_trains_it(attention):
    split = single_numbers(train=256, test=20)
    words = Vocabulary.of(pair.source for pair in split.train)
    said = Vocabulary.of(pair.target for pair in split.train)
    torch.manual_seed(0)
    config = RecurrentConfig(len(words), len(said), d_model=32, attention=attention)
    model = RecurrentTranslator(config)
    before = copy.deepcopy(model.state_dict())
    recipe = Recipe(steps=30, batch_size=32, rate=5e-3, evaluate_every=15)
    history = Trainer(model, split.train, words, said, recipe, held_out=split.test).run(
        progress=False
    )
    assert history.losses[-1] < 0.8 * history.losses[0]
    assert len(history.evaluations) == 2
    assert all(not torch.equal(before[name], w) for name, w in model.state_dict().items())
    assert len(find_mistakes(model, split.test[:5], words, said)) <= 5


def call(attention=True, **changes):
    model = own_model(attention)
    arguments = {"target": TARGET, "memory": model.encode(SOURCE)} | changes
    return lambda: model.decode(**arguments)


def ended_cache():
    cache = RecurrentCache()
    cache.state = torch.zeros(2, 8, dtype=torch.float64)
    return cache


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RecurrentConfig(0, 5), "source_vocab: expected at least 1, got 0"),
        (lambda: RecurrentConfig(5, 5, d_model=7), "d_model: expected at least 1 and an even number"),
        (lambda: RecurrentConfig(5, 5, attention_size=0), "attention_size: expected at least 1"),
        (lambda: RecurrentConfig(5, 9, pad_id=5), "pad_id: expected at least 0 and a number below source_vocab = 5"),
        (lambda: own_model(True)(SOURCE + 9, TARGET), "source: expected at least 0 and a number below self.config.source_vocab = 12"),
        (lambda: own_model(True)(SOURCE, TARGET[:2]), "target: expected shape .B, L. = .3, L. as in source"),
        (lambda: own_model(True)(SOURCE[:, :0], TARGET), "source: expected at least one token"),
        (lambda: own_model(True)(SOURCE * 0, TARGET), "source: expected at least one token"),
        (lambda: own_model(True)(SOURCE.flip(1), TARGET), "source: expected padding on the right"),
        (call(target=TARGET[:, :0]), "target: expected L of at least 1"),
        (call(target=TARGET + 9), "target: expected at least 0 and a number below self.config.target_vocab = 12"),
        (call(memory_mask=torch.ones(3, 1, 1, 5) > 0), "memory_mask: expected shape .* = .3, 1, 1, 4. as in target and memory"),
        (call(cache=ended_cache()), "target: expected shape .B, L. = .2, L. as in cache.state, got shape .3, 5."),
        (call(attention=False, return_weights=True), "return_weights: expected False"),
    ],
)  # fmt: skip
def test_bad_calls(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RecurrentTranslator(5), "config: expected a RecurrentConfig, got int"),
        (lambda: RecurrentConfig(5, 5, attention=1), "attention: expected True or False, got int"),
        (lambda: own_model(True)(SOURCE.double(), TARGET), "source: expected an integer dtype"),
        (call(return_weights=1), "return_weights: expected True or False"),
        (call(memory=[1.0]), "memory: expected a torch.Tensor"),
    ],
)
def test_bad_types(make, message):
    with pytest.raises(TypeError, match=message):
        make()
