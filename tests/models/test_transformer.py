"""The Transformer's own behavior: masks, padding, the cache, wirings, weights, counts and complaints.

Equality with other libraries is in test_transformer_torch.py and test_transformer_hf.py.
"""

import math
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from same_numbers import shake
from tested_transformer import reference
from tested_transformer.layers.cache import DecoderCache
from tested_transformer.layers.residual import deepnorm_constants
from tested_transformer.models.convert_torch import transformer_to_torch
from tested_transformer.models.transformer import Decoder, Encoder, Transformer, TransformerConfig

PAD, REAL = 0, slice(1, None)
SMALL = {"d_model": 8, "num_heads": 2, "num_encoder_layers": 2, "num_decoder_layers": 3, "d_ff": 12}
NORM_PLACEMENTS = ["post", "pre", "deepnorm", "resi_dual"]


def small(seed=0, vocab=11, dtype=torch.float64, **changes) -> Transformer:
    """A small model with drawn weights, scales and shifts, in evaluation."""
    config = TransformerConfig(vocab, **{**SMALL, "dropout": 0.0} | changes)
    return shake(Transformer(config), seed).to(dtype).eval()


def ids(seed, *shape, vocab=11):
    return torch.randint(1, vocab, shape, generator=torch.Generator().manual_seed(seed))


def assert_close(got, expected, tolerance=1e-12):
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


# --- The formula, written out ---------------------------------------------------------------------


def written_out(model, source, target):
    """The model layer by layer, with the norm_placement as its paper writes it."""
    config = model.config
    alphas = [1.0, 1.0]
    if config.norm_placement == "deepnorm":
        sizes = config.num_encoder_layers, config.num_decoder_layers
        alphas = [constants.alpha for constants in deepnorm_constants(*sizes)]

    def embed(ids, embedding):
        x = embedding.table(ids) * config.d_model**0.5
        return x + embedding.positions(torch.arange(ids.shape[1]))

    def step(x, total, residual, sublayer, alpha):
        norm = residual.norm
        if config.norm_placement == "pre":
            return x + sublayer(norm(x)), total
        found = sublayer(x)
        if config.norm_placement == "resi_dual":
            return norm(x + found), total + found
        return norm(alpha * x + found), total

    def finish(stack, x, total):
        if config.norm_placement == "resi_dual":
            return x + stack.norm(total)
        return x if stack.norm is None else stack.norm(x)

    x = total = embed(source, model.source_embedding)
    for layer in model.encoder.layers:
        x, total = step(x, total, layer.residuals[0], layer.attention, alphas[0])
        x, total = step(x, total, layer.residuals[1], layer.feed_forward, alphas[0])
    memory = finish(model.encoder, x, total)
    x = total = embed(target, model.target_embedding)
    for layer in model.decoder.layers:
        look_back = lambda x, layer=layer: layer.attention(x, causal=True)  # noqa: E731
        look_over = lambda x, layer=layer: layer.cross_attention(x, memory)  # noqa: E731
        x, total = step(x, total, layer.residuals[0], look_back, alphas[1])
        x, total = step(x, total, layer.residuals[1], look_over, alphas[1])
        x, total = step(x, total, layer.residuals[2], layer.feed_forward, alphas[1])
    return model.output(finish(model.decoder, x, total))


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("norm_placement", NORM_PLACEMENTS)
def test_the_wirings_written_out(norm_placement, norm):
    model = small(norm_placement=norm_placement, norm=norm)
    source, target = ids(1, 3, 5), ids(2, 3, 4)
    assert_close(model(source, target), written_out(model, source, target))


@pytest.mark.parametrize("norm_placement", ["post", "pre"])
@pytest.mark.parametrize("final_norm", [False, True])
def test_the_final_norm_is_a_choice(norm_placement, final_norm):
    model = small(norm_placement=norm_placement, final_norm=final_norm)
    assert (model.encoder.norm is not None) == (model.decoder.norm is not None) == final_norm
    source, target = ids(1, 3, 5), ids(2, 3, 4)
    assert_close(model(source, target), written_out(model, source, target))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"target_vocab": 7, "tied_output": False, "output_bias": True},
        {"norm_placement": "pre", "activation": "gelu", "scale_embedding": False},
        {"positions": "none", "bias": False},
    ],
)
def test_against_the_loops(changes):
    """float64 against longdouble: nothing but rounding lies between the model and the reference."""
    vocab = changes.get("target_vocab", 11)
    model = small(3, **changes)
    source, target = ids(1, 2, 5), ids(2, 2, 4, vocab=vocab)
    source[1, 3:], target[0, 2:] = PAD, PAD
    weights = {n: w.numpy().astype(np.longdouble) for n, w in model.state_dict().items()}
    expected = reference.transformer(source.numpy(), target.numpy(), weights, model.config)
    assert expected.dtype == np.longdouble
    real = (target != PAD).numpy()
    ours, plain = (
        float(np.abs(answer.detach().numpy() - expected)[real].max())
        for answer in (model(source, target), torchs_stacks(model, source, target))
    )
    assert ours <= 2 * plain + 4 * np.finfo(np.float64).eps * float(np.abs(expected)[real].max())


def torchs_stacks(model, source, target):
    """torch's nn.Transformer between the model's own embedding and output layer."""
    length = target.shape[1]
    x, y = (
        embedding(ids, torch.arange(ids.shape[1]).expand_as(ids), ids.shape[1])
        for ids, embedding in ((source, model.source_embedding), (target, model.target_embedding))
    )
    answer = transformer_to_torch(model)(
        x, y, tgt_mask=torch.ones(length, length).triu(1).bool(),
        src_key_padding_mask=source == PAD, tgt_key_padding_mask=target == PAD,
        memory_key_padding_mask=source == PAD,
    )  # fmt: skip
    return model.output(answer)


def test_positions_need_not_be_there():
    """Without them the order of the source is nothing to the model; with them it is."""
    source, target = ids(1, 1, 6), ids(2, 1, 4)
    for positions, same in (("none", True), ("sinusoidal", False)):
        model = small(positions=positions)
        turned = model(source.flip(1), target)
        assert torch.allclose(turned, model(source, target), atol=1e-10) == same


def test_half_precision_stays_what_it_is():
    for dtype in (torch.bfloat16, torch.float16):
        model = small(dtype=dtype)
        logits = model(ids(1, 2, 5), ids(2, 2, 4))
        assert logits.dtype == dtype
        assert_close(logits.double(), small()(ids(1, 2, 5), ids(2, 2, 4)), 0.2)


# --- Padding and masks ----------------------------------------------------------------------------


def pad(rows, length, left):
    """Rows of different lengths in one batch, padding on the left or on the right."""
    out = torch.full((len(rows), length), PAD)
    for place, row in zip(out, rows, strict=True):
        start = length - len(row) if left else 0
        place[start : start + len(row)] = row
    return out


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("norm_placement", NORM_PLACEMENTS)
@pytest.mark.parametrize("left", [(False, False), (True, False), (False, True), (True, True)])
def test_padding_never_changes_a_real_token(norm_placement, left, positions):
    max_length = 6 if positions == "learned" else None  # shorter than what is padded: 9
    model = small(norm_placement=norm_placement, positions=positions, max_length=max_length)
    sources = [ids(seed, length) for seed, length in enumerate((6, 2, 4))]
    targets = [ids(9 + seed, length) for seed, length in enumerate((1, 5, 3))]
    target = pad(targets, 7, left[1])
    logits = model(pad(sources, 9, left[0]), target)
    assert logits.isfinite().all()
    for b, (source, words) in enumerate(zip(sources, targets, strict=True)):
        assert_close(logits[b][target[b] != PAD], model(source[None], words[None])[0])


def test_padding_has_no_gradient_and_the_row_none_from_the_input():
    model = small(tied_output=False).train()
    source, target = pad([ids(0, 5), ids(1, 2)], 5, True), pad([ids(2, 1), ids(3, 4)], 4, False)
    model(source, target).sum().backward()
    assert (model.source_embedding.table.weight.grad[PAD] == 0).all()
    assert (model.source_embedding.table.weight.grad[source[source != PAD]] != 0).all()


def test_a_source_of_nothing_but_padding():
    model = small()
    source = torch.stack([ids(0, 4), torch.full((4,), PAD)])
    logits = model(source, ids(1, 2, 3))
    assert logits.isfinite().all()
    assert_close(logits[0], model(source[:1], ids(1, 2, 3)[:1])[0])
    logits.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_without_a_padding_token_every_token_is_seen():
    model = small(pad_id=None)
    assert model.padding(ids(0, 2, 3)) is None
    source, other = torch.tensor([[3, 0, 0]]), torch.tensor([[3]])
    target = ids(1, 1, 4)
    assert not torch.allclose(model(source, target), model(other, target))


@pytest.mark.parametrize("norm_placement", NORM_PLACEMENTS)
def test_the_future_stays_hidden(norm_placement):
    model = small(norm_placement=norm_placement)
    source, target = ids(0, 2, 5), ids(1, 2, 6)
    for mode in (True, False):
        logits = model.train(mode)(source, target)
        for cut in range(1, 6):
            changed = target.clone()
            changed[:, cut:] = target[:, cut:] % 10 + 1
            got = model(source, changed)
            assert_close(got[:, :cut], logits[:, :cut])
            assert not torch.allclose(got[:, cut], logits[:, cut])


def test_masks_from_outside():
    model = small()
    source, target = ids(0, 2, 5), ids(1, 2, 4)
    source[1, 4] = PAD
    hidden_word = torch.tensor([True, True, False, True, True])
    logits = model(source, target, source_mask=hidden_word.expand(5, 5), memory_mask=hidden_word.expand(4, 5))  # fmt: skip
    changed = source.clone()
    changed[:, 2] = source[:, 2] % 10 + 1
    again = model(changed, target, source_mask=hidden_word.expand(5, 5), memory_mask=hidden_word.expand(4, 5))  # fmt: skip
    assert_close(logits, again)
    itself = torch.eye(4, dtype=torch.bool)[None, None]
    alone = model(source, target, target_mask=itself)
    for i in range(1, 4):
        changed = target.clone()
        changed[:, :i] = target[:, :i] % 10 + 1
        assert_close(model(source, changed, target_mask=itself)[:, i:], alone[:, i:])


def test_masks_that_allow_everything_change_nothing():
    model = small()
    source, target = ids(0, 2, 5), ids(1, 2, 4)
    every = {
        "source_mask": torch.ones(5, 5).bool(),
        "target_mask": torch.ones(2, 1, 4, 4).bool(),
        "memory_mask": torch.ones(1, 1, 1, 5).bool(),
    }
    assert_close(model(source, target, **every), model(source, target))


@pytest.mark.parametrize(("batch", "length", "width"), [(0, 4, 3), (2, 0, 3), (2, 4, 0)])
def test_empty_axes(batch, length, width):
    source, target = torch.ones(batch, width).long(), torch.ones(batch, length).long()
    assert small()(source, target).shape == (batch, length, 11)


# --- The weights of the attentions ----------------------------------------------------------------


@pytest.mark.parametrize("norm_placement", NORM_PLACEMENTS)
def test_weights_of_every_layer_and_head(norm_placement):
    model = small(norm_placement=norm_placement)
    source, target = pad([ids(0, 5), ids(1, 3)], 5, False), pad([ids(2, 4), ids(3, 2)], 4, False)
    logits, weights = model(source, target, return_weights=True)
    assert_close(logits, model(source, target))
    assert [w.shape for w in weights.encoder] == [(2, 2, 5, 5)] * 2
    assert [w.shape for w in weights.decoder] == [(2, 2, 4, 4)] * 3
    assert [w.shape for w in weights.cross] == [(2, 2, 4, 5)] * 3
    for found in (*weights.encoder, *weights.decoder, *weights.cross):
        assert_close(found.sum(-1), torch.ones_like(found[..., 0]))
    for found in (*weights.encoder, *weights.cross):
        assert (found[1, :, :, 3:] == 0).all()
    for found in weights.decoder:
        assert (found.triu(1) == 0).all()
        assert (found[1, :, :, 2:] == 0).all()


def test_weights_from_the_two_halves_and_with_a_cache():
    model = small()
    source, target = ids(0, 2, 5), ids(1, 2, 4)
    _, whole = model(source, target, return_weights=True)
    memory, seen = model.encode(source, return_weights=True)
    cache = model.new_cache()
    with torch.no_grad():
        _, first = model.decode(target[:, :1], memory, cache=cache, return_weights=True)
        _, rest = model.decode(target[:, 1:], memory, cache=cache, return_weights=True)
    for n in range(3):
        assert first.decoder[n].shape == (2, 2, 1, 1)
        assert_close(rest.decoder[n], whole.decoder[n][:, :, 1:].detach())
        assert_close(rest.cross[n], whole.cross[n][:, :, 1:].detach())
    for mine, expected in zip(seen, whole.encoder, strict=True):
        assert_close(mine, expected)
    assert first.encoder == []


# --- The cache ------------------------------------------------------------------------------------


def decode_in_chunks(model, source, target, cuts, capacity=64):
    cache, memory = model.new_cache(capacity=capacity), model.encode(source)
    options = {"memory_mask": model.padding(source), "cache": cache}
    pieces = target.tensor_split(sorted(cuts), dim=1)
    logits = [model.decode(piece, memory, **options) for piece in pieces if piece.shape[1]]
    assert cache.length == target.shape[1]
    return torch.cat(logits, dim=1), cache


@pytest.mark.parametrize("norm_placement", NORM_PLACEMENTS)
@settings(max_examples=12, derandomize=True)
@given(data=st.data())
def test_cached_decoding_is_one_pass(norm_placement, data):
    """Chunks of any size, padding anywhere in source and target, any first capacity."""
    model = small(norm_placement=norm_placement, num_encoder_layers=1, num_decoder_layers=2)
    batch, length, width = (data.draw(st.integers(1, n)) for n in (3, 8, 6))
    source, target = ids(length, batch, width), ids(width, batch, length)
    gaps = data.draw(st.lists(st.booleans(), min_size=batch * length, max_size=batch * length))
    target[torch.tensor(gaps).view(batch, length)] = PAD
    source[:, : data.draw(st.integers(0, width - 1))] = PAD
    cuts = data.draw(st.sets(st.integers(1, length)))
    with torch.no_grad():
        whole = model(source, target)
        got, _ = decode_in_chunks(model, source, target, cuts, data.draw(st.integers(1, 9)))
    assert_close(got[target != PAD], whole[target != PAD])


def test_a_target_mask_covers_the_cache():
    model = small()
    source, target = ids(0, 2, 4), ids(1, 2, 6)
    mask = (torch.arange(6)[:, None] - torch.arange(6)) < 2  # each token and the one before
    memory, cache = model.encode(source), model.new_cache()
    with torch.no_grad():
        whole = model(source, target, target_mask=mask)
        parts = [model.decode(target[:, a:b], memory, mask=mask[a:b, :b], cache=cache) for a, b in ((0, 2), (2, 5), (5, 6))]  # fmt: skip
    assert_close(torch.cat(parts, 1), whole)


def test_rows_of_the_cache_may_change_places():
    """Beam search keeps some rows, drops others, and goes on from them."""
    model = small()
    source, target = pad([ids(0, 5), ids(1, 3)], 5, True), ids(2, 2, 6)
    rows = torch.tensor([1, 1, 0])
    memory = model.encode(source)
    with torch.no_grad():
        _, cache = decode_in_chunks(model, source, target[:, :4], [1])
        cache.reorder(rows)
        got = model.decode(target[rows, 4:], memory[rows], memory_mask=model.padding(source[rows]), cache=cache)  # fmt: skip
        assert_close(got, model(source[rows], target[rows])[:, 4:])


def test_a_cache_may_forget():
    model = small()
    source, target, other = ids(0, 2, 5), ids(1, 2, 6), ids(2, 2, 3)
    with torch.no_grad():
        _, cache = decode_in_chunks(model, source, target, [2])
        cache.truncate(4)
        assert cache.length == 4
        got = model.decode(other, model.encode(source), cache=cache)
        assert_close(got, model(source, torch.cat([target[:, :4], other], 1))[:, 4:])


def test_the_memory_is_projected_once():
    """After the first chunk the cross-attention reads its cache, not the memory."""
    model = small()
    source, target = ids(0, 2, 5), ids(1, 2, 4)
    memory, cache = model.encode(source), model.new_cache()
    with torch.no_grad():
        model.decode(target[:, :2], memory, cache=cache)
        got = model.decode(target[:, 2:], torch.full_like(memory, float("nan")), cache=cache)
        assert_close(got, model(source, target)[:, 2:])


# --- Random numbers, copies, sizes ----------------------------------------------------------------


def test_dropout_trains_and_rests():
    model = Transformer(TransformerConfig(11, **SMALL, dropout=0.4))
    source, target = ids(0, 2, 5), ids(1, 2, 4)
    assert not torch.equal(model(source, target), model(source, target))
    torch.manual_seed(0)
    first = model(source, target)
    torch.manual_seed(0)
    assert torch.equal(first, model(source, target))
    model.eval()
    assert torch.equal(model(source, target), model(source, target))


def test_dropout_acts_on_the_embedding_the_weights_the_sublayers_and_the_wide_numbers():
    """Section 5.4 of the paper, and inside as torch does it."""
    model = Transformer(TransformerConfig(11, **SMALL, dropout=0.4))
    rates = [m.p for m in model.modules() if isinstance(m, nn.Dropout)]
    embeddings, residuals, feed_forwards = 2, 2 * 2 + 3 * 3, 2 + 3
    assert rates == [0.4] * (embeddings + residuals + feed_forwards)
    layers = [*model.encoder.layers, *model.decoder.layers]
    assert {layer.attention.dropout for layer in layers} == {0.4}
    assert {layer.cross_attention.dropout for layer in model.decoder.layers} == {0.4}


def test_a_seed_gives_the_same_model():
    config = TransformerConfig(11, **SMALL)
    first, second, third = [], [], []
    for seed, found in ((1, first), (1, second), (2, third)):
        torch.manual_seed(seed)
        found += Transformer(config).state_dict().values()
    assert all(map(torch.equal, first, second))
    assert not all(map(torch.equal, first, third))


def test_the_start():
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(500, d_model=64, num_heads=2, num_encoder_layers=1, num_decoder_layers=1))  # fmt: skip
    table = model.source_embedding.table.weight
    assert (table[PAD] == 0).all()
    assert abs(float(table.detach()[REAL].std()) * 8 - 1) < 0.02
    layer = model.encoder.layers[0]
    assert float(layer.attention.query.weight.detach().abs().max()) <= math.sqrt(6 / 128)
    assert (layer.feed_forward.up_proj.bias == 0).all()
    torch.manual_seed(0)
    deep = Transformer(replace(model.config, norm_placement="deepnorm")).decoder.layers[0]
    beta = deepnorm_constants(1, 1)[1].beta
    assert (
        abs(
            float(deep.feed_forward.down_proj.weight.detach().std()) / (beta * math.sqrt(2 / 320))
            - 1
        )
        < 0.02
    )
    assert abs(float(deep.attention.key.weight.detach().std()) / math.sqrt(2 / 128) - 1) < 0.03


@pytest.mark.parametrize("target_vocab", [None, 7])
@pytest.mark.parametrize("tied", [False, True])
def test_what_is_shared(target_vocab, tied):
    model = small(target_vocab=target_vocab, tied_output=tied)
    source, target = model.source_embedding.table, model.target_embedding.table
    assert (source is target) == (target_vocab is None)
    assert (model.output.weight is target.weight) == tied
    assert model.output.weight.shape == (target_vocab or 11, 8)
    for layer in model.decoder.layers:  # three uses of attention, each with weights of its own
        parts = [p for n, p in layer.named_parameters() if n.endswith("query.weight")]
        assert len({id(p) for p in parts}) == 2
    every = [p for stack in (model.encoder, model.decoder) for p in stack.parameters()]
    assert len({p.data_ptr() for p in every}) == len(every)


@pytest.mark.parametrize(
    "changes",
    [{}, {"target_vocab": 7, "tied_output": False, "output_bias": True}, {"norm_placement": "resi_dual", "bias": False},
     {"positions": "learned", "max_length": 9, "embedding_norm": True, "norm": "rms"}],
)  # fmt: skip
def test_state_dict_there_and_back(changes, tmp_path):
    model, other = small(1, **changes), small(2, **changes)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True), strict=True)
    source, target = ids(0, 2, 5), ids(1, 2, 4, vocab=7)
    assert torch.equal(model(source, target), other(source, target))


def parameters_by_formula(config) -> int:
    """V D for the shared table; 4 D^2 + 4 D an attention; 2 D F + F + D a network; 2 D a norm."""
    width, wide = config.d_model, config.d_ff
    attention, network, norm = 4 * width**2 + 4 * width, 2 * width * wide + wide + width, 2 * width
    encoder = config.num_encoder_layers * (attention + network + 2 * norm)
    decoder = config.num_decoder_layers * (2 * attention + network + 3 * norm)
    return config.source_vocab * width + encoder + decoder


@pytest.mark.parametrize(
    ("config", "measured", "paper"),
    [(TransformerConfig(), 63_082_496, 65e6), (TransformerConfig.big(), 214_245_376, 213e6)],
    ids=["base", "big"],
)
def test_the_papers_sizes(config, measured, paper):
    with torch.device("meta"):
        model = Transformer(config)
    assert sum(p.numel() for p in model.parameters()) == measured == parameters_by_formula(config)
    assert abs(measured / paper - 1) < 0.03


def test_the_papers_models():
    base, big = TransformerConfig(), TransformerConfig.big()
    assert (base.d_model, base.num_heads, base.d_ff, base.dropout) == (512, 8, 2048, 0.1)
    assert (big.d_model, big.num_heads, big.d_ff, big.dropout) == (1024, 16, 4096, 0.3)
    assert base.num_encoder_layers == base.num_decoder_layers == big.num_encoder_layers == 6
    assert base.norm_placement == "post"
    assert not base.final_norm
    assert TransformerConfig.big(dropout=0.1).dropout == 0.1


def test_a_softmax_before_cross_entropy_has_a_floor():
    """Of 5 classes, the best that probabilities can do as logits is log(1 + 4/e) = 0.905."""
    perfect = torch.tensor([[1.0, 0, 0, 0, 0]])  # a probability of 1 for the right class
    floor = float(functional.cross_entropy(perfect, torch.tensor([0])))
    assert floor == pytest.approx(math.log(1 + 4 / math.e))
    assert round(floor, 3) == 0.905
    logits = 100 * perfect
    assert float(functional.cross_entropy(logits, torch.tensor([0]))) == 0.0
    assert float(functional.cross_entropy(logits.softmax(-1), torch.tensor([0]))) == pytest.approx(floor)  # fmt: skip


@pytest.mark.plain_types
def test_it_compiles_into_one_graph():
    """fullgraph: no step of it hides from the compiler. Dynamo alone, so that no C++ is needed."""
    model = small(dtype=torch.float32)
    source, target = pad([ids(0, 5), ids(1, 3)], 5, False), ids(2, 2, 4)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_close(compiled(source, target), model(source, target), 1e-6)


# --- Complaints -----------------------------------------------------------------------------------


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"source_vocab": 0}, ValueError, ["source_vocab", "at least 1"]),
        ({"source_vocab": "9"}, TypeError, ["source_vocab", "str", "an int"]),
        ({"target_vocab": -1}, ValueError, ["target_vocab", "-1"]),
        ({"d_model": 8.0}, TypeError, ["d_model", "float"]),
        ({"num_heads": 0}, ValueError, ["num_heads"]),
        ({"num_heads": 3}, ValueError, ["num_heads", "3", "8"]),
        ({"num_encoder_layers": 0}, ValueError, ["num_encoder_layers"]),
        ({"num_decoder_layers": True}, TypeError, ["num_decoder_layers", "bool"]),
        ({"d_ff": 0}, ValueError, ["d_ff"]),
        ({"dropout": 1.0}, ValueError, ["dropout", "[0, 1)"]),
        ({"dropout": None}, TypeError, ["dropout", "NoneType"]),
        ({"activation": "tanh"}, ValueError, ["activation", "tanh", "relu"]),
        ({"norm_placement": "middle"}, ValueError, ["norm_placement", "middle", "post"]),
        ({"norm": "batch"}, ValueError, ["norm", "batch", '"layer" or "rms"']),
        ({"norm_eps": 0}, ValueError, ["norm_eps", "above 0"]),
        ({"final_norm": 1}, TypeError, ["final_norm", "True or False"]),
        (
            {"norm_placement": "resi_dual", "final_norm": False},
            ValueError,
            ["final_norm", "resi_dual"],
        ),
        ({"positions": "rotary"}, ValueError, ["positions", "rotary", "sinusoidal"]),
        ({"position_layout": "thirds"}, ValueError, ["layout", "thirds", "halves"]),
        ({"positions": "learned"}, TypeError, ["max_length", "got None"]),
        ({"positions": "learned", "max_length": 0}, ValueError, ["max_length", "at least 1"]),
        ({"bias": 0}, TypeError, ["bias", "int"]),
        ({"scale_embedding": 2.0}, TypeError, ["scale_embedding"]),
        ({"tied_output": None}, TypeError, ["tied_output"]),
        ({"pad_id": 11}, ValueError, ["pad_id", "11", "below source_vocab = 11"]),
        ({"pad_id": 9, "target_vocab": 7}, ValueError, ["pad_id", "below self.output_vocab = 7"]),
        ({"pad_id": -1}, ValueError, ["pad_id"]),
    ],
)
def test_malformed_configurations(changes, error, words):
    with pytest.raises(error) as caught:
        TransformerConfig(**{"source_vocab": 11, **SMALL} | changes)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_configuration_can_not_be_changed_but_replaced():
    config = TransformerConfig(11, **SMALL)
    with pytest.raises(FrozenInstanceError):
        config.d_model = 4
    assert replace(config, dropout=0.0).dropout == 0.0


MODEL = small(dtype=torch.float32)
SOURCE, TARGET, MEMORY = torch.ones(2, 3).long(), torch.ones(2, 4).long(), torch.ones(2, 3, 8)


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: MODEL(SOURCE.float(), TARGET), TypeError, ["source", "float32", "integer"]),
        (lambda: MODEL(SOURCE, TARGET.tolist()), TypeError, ["target", "list"]),
        (lambda: MODEL(SOURCE[0], TARGET), ValueError, ["source", "(3,)", "2 axes"]),
        (lambda: MODEL(SOURCE, TARGET[:1]), ValueError, ["target", "(1, 4)", "(2, L) as in source"]),
        (lambda: MODEL(SOURCE + 10, TARGET), ValueError, ["source", "below self.config.source_vocab = 11, got 11 to"]),
        (lambda: MODEL(SOURCE, TARGET - 2), ValueError, ["target", "-1", "at least 0"]),
        (lambda: MODEL(SOURCE, TARGET, source_mask=torch.ones(3, 3)), TypeError, ["mask", "bool"]),
        (lambda: MODEL(SOURCE, TARGET, memory_mask=torch.ones(4, 4).bool()), ValueError, ["mask"]),
        (lambda: MODEL.encode(MEMORY), TypeError, ["source", "float32"]),
        (lambda: MODEL.decode(TARGET, MEMORY[0]), ValueError, ["memory", "3 axes"]),
        (lambda: MODEL.decode(TARGET, MEMORY[..., :5]), ValueError, ["memory", "(2, 3, 5)", "(2, S, 8)"]),
        (lambda: MODEL.decode(TARGET, SOURCE), TypeError, ["memory", "int64"]),
        (lambda: MODEL.encoder(SOURCE), TypeError, ["x", "int64"]),
        (lambda: MODEL.encoder(MEMORY[..., :5]), ValueError, ["x", "(2, 3, 5)", "(B, L, 8)"]),
        (lambda: MODEL.decode(TARGET, MEMORY, cache=DecoderCache(2)), ValueError, ["cache", "2 layers", "3"]),
        (lambda: MODEL.decode(TARGET, MEMORY, cache=MODEL.new_cache()), ValueError, ["no_grad"]),
        (lambda: Transformer({"d_model": 8}), TypeError, ["config", "dict", "TransformerConfig"]),
        (lambda: Encoder(8), TypeError, ["config", "int", "EncoderDecoderConfig"]),
        (lambda: Decoder(None), TypeError, ["config", "NoneType", "EncoderDecoderConfig"]),
    ],
)  # fmt: skip
def test_malformed_calls(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.plain_types
def test_a_refused_chunk_leaves_the_cache_as_it_was():
    cache = MODEL.new_cache()
    with torch.no_grad():
        MODEL.decode(TARGET, MEMORY, cache=cache)
        with pytest.raises(ValueError, match=r"target: .*\(2, L\) as in cache.real"):
            MODEL.decode(TARGET[:1], MEMORY[:1], cache=cache)
        assert cache.length == 4


def test_learned_positions_end():
    model = small(positions="learned", max_length=4)
    model(ids(0, 1, 4), ids(1, 1, 4))
    with pytest.raises(ValueError, match="position_ids.*4"):
        model(ids(0, 1, 5), ids(1, 1, 4))
