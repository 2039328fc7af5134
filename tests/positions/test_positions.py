"""Positions: sinusoids, their shift, tables, segments, distances, and what one might try first."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tested_transformer import (
    LearnedPositions,
    PositionScheme,
    RelativeAttention,
    RelativePositions,
    SegmentedEmbedding,
    SinusoidalPositions,
    attention,
    binary_positions,
    integer_positions,
    judge,
    reference,
    relative_attention,
    relative_distances,
    shift_matrix,
    sinusoidal_positions,
    unit_positions,
)
from tested_transformer.positions.sinusoidal import frequencies
from tested_transformer.specs.positions.mutants import (
    BertInput,
    RelativeFormula,
    SinusoidFormula,
    shift,
)
from tested_transformer.specs.positions.spec import (
    RELATIVE_ATTENTION,
    SEGMENTED_EMBEDDING,
    SHIFT_MATRIX,
    SINUSOIDAL_POSITIONS,
)

LAYOUTS = ["interleaved", "halves"]


def normal(*shapes, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=dtype) for shape in shapes]


def the_layer(positions, d_model, *, base=10000.0, layout="interleaved", dtype=torch.float32):
    layer = SinusoidalPositions(d_model, base=base, layout=layout).to(dtype)
    return layer(positions) if positions.ndim else layer(positions[None])[0]


@pytest.mark.parametrize(
    ("spec", "right", "skipped"),
    [
        (SINUSOIDAL_POSITIONS, sinusoidal_positions, {}),
        (SINUSOIDAL_POSITIONS, the_layer, {}),
        (SINUSOIDAL_POSITIONS, SinusoidFormula(), {}),
        (SHIFT_MATRIX, shift_matrix, {}),
        (SHIFT_MATRIX, shift, {}),
        (SEGMENTED_EMBEDDING, SegmentedEmbedding, {}),
        (SEGMENTED_EMBEDDING, BertInput, {}),
        (RELATIVE_ATTENTION, relative_attention, {}),
        (RELATIVE_ATTENTION, RelativeFormula(), {}),
    ],
)
def test_right_implementations_pass(spec, right, skipped):
    verdict = judge(spec, right)
    assert verdict.passed, verdict
    assert dict(verdict.skipped) == skipped


# --- Sinusoids ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("d_model", [1, 2, 3, 8, 13])
def test_against_the_loops(d_model, layout):
    positions = torch.tensor([[0, 1, 2], [77, 4096, -3]])
    got = sinusoidal_positions(positions, d_model, base=777.0, layout=layout, dtype=torch.float64)
    expected = reference.sinusoidal_positions(positions.numpy(), d_model, 777.0, layout)
    np.testing.assert_allclose(got, expected.astype(float), atol=1e-12)


@given(
    position=st.integers(-(10**6), 10**6),
    offset=st.integers(-5000, 5000),
    pairs=st.integers(1, 20),
    base=st.floats(2.0, 1e6),
    layout=st.sampled_from(LAYOUTS),
)
@settings(max_examples=60)
def test_a_shift_is_one_matrix_for_all_positions(position, offset, pairs, base, layout):
    """R PE(pos) = PE(pos + offset)."""
    options = {"base": base, "layout": layout, "dtype": torch.float64}
    turn = shift_matrix(offset, 2 * pairs, **options)
    places = torch.tensor([position, position + offset])
    here, there = sinusoidal_positions(places, 2 * pairs, **options)
    torch.testing.assert_close(turn @ here, there, atol=1e-8, rtol=0)


@given(start=st.integers(0, 10**5), distance=st.integers(0, 500), pairs=st.integers(1, 16))
@settings(max_examples=40)
def test_the_dot_product_depends_on_the_distance_alone(start, distance, pairs):
    places = torch.tensor([start, start + distance, 0, distance])
    a, b, c, d = sinusoidal_positions(places, 2 * pairs, dtype=torch.float64)
    expected = torch.cos(distance * frequencies(2 * pairs)).sum()
    torch.testing.assert_close(a @ b, expected, atol=1e-8, rtol=0)
    torch.testing.assert_close(c @ d, expected, atol=1e-8, rtol=0)


def test_shifts_compose_and_turn_back():
    options = {"layout": "halves", "dtype": torch.float64}
    three, four, seven = (shift_matrix(n, 6, **options) for n in (3, 4, 7))
    torch.testing.assert_close(three @ four, seven)
    torch.testing.assert_close(shift_matrix(-3, 6, **options), three.T)
    torch.testing.assert_close(shift_matrix(0, 6, **options), torch.eye(6, dtype=torch.float64))


def test_far_positions_are_as_exact_as_near_ones():
    far = torch.tensor([10**6 + 3])
    expected = reference.sinusoidal_positions(far.numpy(), 64).astype(float)
    np.testing.assert_allclose(sinusoidal_positions(far, 64), expected, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_layer_has_the_dtype_of_the_module(dtype):
    layer = nn.Sequential(SinusoidalPositions(6)).to(dtype)
    answer = layer(torch.arange(4)[None])
    assert answer.dtype == dtype
    exact = sinusoidal_positions(torch.arange(4)[None], 6, dtype=torch.float64)
    assert torch.equal(answer, exact.to(dtype))


def test_the_layer_has_no_parameters_and_nothing_to_store():
    layer = SinusoidalPositions(6)
    assert not list(layer.parameters())
    assert not layer.state_dict()


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (2, 3, 4)])
def test_any_batch(shape):
    positions = torch.zeros(shape, dtype=torch.long)
    assert sinusoidal_positions(positions, 5).shape == (*shape, 5)


def test_position_types():
    for dtype in (torch.int32, torch.int16):
        assert torch.equal(
            sinusoidal_positions(torch.arange(9, dtype=dtype), 4),
            sinusoidal_positions(torch.arange(9), 4),
        )


@pytest.mark.parametrize("d_model", [6, 7, 10])
def test_marians_table(d_model):
    marian = pytest.importorskip("transformers.models.marian.modeling_marian")
    theirs = marian.MarianSinusoidalPositionalEmbedding(20, d_model)
    if hasattr(theirs, "create_weight"):
        theirs.weight.data.copy_(theirs.create_weight())
    ours = sinusoidal_positions(torch.arange(20), d_model, layout="halves")
    torch.testing.assert_close(ours, theirs.weight.data, atol=1e-6, rtol=0)


@pytest.mark.parametrize("d_model", [4, 8, 12])
def test_whispers_table(d_model):
    """[sin | cos] halves, and the last pair at the base itself: as if the base were larger."""
    whisper = pytest.importorskip("transformers.models.whisper.modeling_whisper")
    theirs = whisper.sinusoids(30, d_model)
    pairs = d_model // 2
    base = 10000.0 ** (pairs / (pairs - 1))
    ours = sinusoidal_positions(torch.arange(30), d_model, layout="halves", base=base)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


# --- The protocol ---------------------------------------------------------------------------------


def test_a_scheme_that_overrides_nothing_does_nothing():
    scheme, position_ids = PositionScheme(), torch.arange(3)
    x, query, key = normal((2, 3, 4), (2, 4, 3, 5), (2, 2, 3, 5))
    assert scheme.embed(x, position_ids) is x
    rotated = scheme.rotate(query, key, position_ids)
    assert rotated[0] is query
    assert rotated[1] is key
    assert scheme.bias(position_ids, position_ids) is None
    assert scheme.slopes(x) is None


@pytest.mark.parametrize("scheme", [SinusoidalPositions(4), LearnedPositions(9, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_absolute_schemes_add_their_vectors_to_the_embeddings(scheme, dtype):
    """One row of position IDs for all sequences, or a row for each; x keeps its dtype."""
    (x,) = normal((2, 3, 4), dtype=dtype)
    for position_ids in (torch.tensor([5, 0, 2]), torch.tensor([[0, 1, 2], [0, 0, 7]])):
        embedded = scheme.embed(x, position_ids)
        assert embedded.dtype == dtype
        vectors = scheme(position_ids).to(dtype)
        for b in range(2):
            row = vectors[b] if position_ids.ndim == 2 else vectors
            torch.testing.assert_close(embedded[b], x[b] + row, rtol=0, atol=0)
    query, key = normal((2, 4, 3, 5), (2, 2, 3, 5))
    assert scheme.rotate(query, key, torch.arange(3)) == (query, key)
    assert scheme.bias(torch.arange(3), torch.arange(3)) is None


# --- Tables ---------------------------------------------------------------------------------------


def test_learned_positions_are_rows_that_learn():
    torch.manual_seed(0)
    layer = LearnedPositions(5, 3)
    positions = torch.tensor([[0, 4], [2, 2]])
    answer = layer(positions)
    assert torch.equal(answer, layer.weight[positions])
    answer.sum().backward()
    assert layer.weight.grad.sum(1).tolist() == [3.0, 0.0, 6.0, 0.0, 3.0]


@pytest.mark.plain_types
def test_learned_positions_compile():
    layer = LearnedPositions(5, 3)
    compiled = torch.compile(layer, backend="eager")
    assert torch.equal(compiled(torch.arange(4)), layer(torch.arange(4)))


def hf_bert(vocab=11, width=8, length=9):
    modeling = pytest.importorskip("transformers.models.bert.modeling_bert")
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=vocab, hidden_size=width, max_position_embeddings=length, type_vocab_size=2,
        num_attention_heads=2, hidden_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    return modeling.BertEmbeddings(config)


def test_against_berts_embeddings():
    theirs = hf_bert().double()
    ours = SegmentedEmbedding(11, 8, max_length=9, dropout=0.0).double()
    with torch.no_grad():
        theirs.LayerNorm.weight.normal_()
        theirs.LayerNorm.bias.normal_()
        ours.token.weight.copy_(theirs.word_embeddings.weight)
        ours.segment.weight.copy_(theirs.token_type_embeddings.weight)
        ours.position.weight.copy_(theirs.position_embeddings.weight)
        ours.norm.load_state_dict(theirs.LayerNorm.state_dict())
    tokens, segments = torch.randint(0, 11, (3, 7)), torch.randint(0, 2, (3, 7))
    positions = torch.arange(1, 8)[None]
    for arguments in ((tokens,), (tokens, segments), (tokens, segments, positions)):
        named = dict(zip(("input_ids", "token_type_ids", "position_ids"), arguments, strict=False))
        torch.testing.assert_close(ours(*arguments), theirs(**named))
    torch.manual_seed(1)
    (weight,) = normal((3, 7, 8))
    (ours(tokens, segments) * weight).sum().backward()
    (theirs(input_ids=tokens, token_type_ids=segments) * weight).sum().backward()
    for mine, other in (
        (ours.token, theirs.word_embeddings),
        (ours.segment, theirs.token_type_embeddings),
        (ours.position, theirs.position_embeddings),
        (ours.norm, theirs.LayerNorm),
    ):
        torch.testing.assert_close(mine.weight.grad, other.weight.grad)


def test_segments_default_to_the_first_and_padding_starts_at_zero():
    torch.manual_seed(0)
    layer = SegmentedEmbedding(7, 4, max_length=5, padding_idx=3).eval()
    tokens = torch.tensor([[3, 1, 2]])
    assert torch.equal(layer(tokens), layer(tokens, torch.zeros_like(tokens)))
    assert not layer.token.weight[3].any()
    assert SegmentedEmbedding(7, 4, padding_idx=None).token.weight[0].any()


def test_dropout_of_the_embedding():
    layer = SegmentedEmbedding(7, 16, dropout=0.5)
    tokens = torch.arange(6)[None]
    assert (layer(tokens) == 0).any()
    assert not (layer.eval()(tokens) == 0).any()


# --- Relative -------------------------------------------------------------------------------------


def test_distances_count_from_the_query():
    assert relative_distances(2, 4, 2).tolist() == [[0, 1, 2, 3], [0, 0, 1, 2]]
    assert relative_distances(0, 3, 1).shape == (0, 3)


@pytest.mark.parametrize("causal", [False, True])
def test_relative_attention_against_the_loops(causal):
    q, k, v, a, b = normal((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 2), (5, 5), (5, 2))
    expected = reference.relative_attention(
        *(t.numpy() for t in (q, k, v, a, b)), causal=causal
    ).astype(float)
    np.testing.assert_allclose(relative_attention(q, k, v, a, b, causal=causal), expected)


def test_cached_equals_uncached():
    q, k, v, a, b = normal((2, 6, 4), (2, 6, 4), (2, 6, 4), (7, 4), (7, 4))
    whole = relative_attention(q, k, v, a, b, causal=True)
    chunk = relative_attention(q[:, 4:], k, v, a, b, causal=True)
    torch.testing.assert_close(chunk, whole[:, 4:])


def test_no_value_table_and_no_distance():
    q, k, v, a, b = normal((2, 4, 3), (2, 4, 3), (2, 4, 5), (3, 3), (3, 5))
    zero = torch.zeros_like(b)
    torch.testing.assert_close(relative_attention(q, k, v, a), relative_attention(q, k, v, a, zero))
    torch.testing.assert_close(relative_attention(q, k, v, torch.zeros_like(a)), attention(q, k, v))
    one = relative_attention(q, k, v, a[:1], b[:1])  # K = 0: the same vector for every pair
    torch.testing.assert_close(one, attention(q, k, v) + b[0])


def test_grouped_heads():
    q, k, v, a, b = normal((2, 4, 5, 3), (2, 2, 5, 3), (2, 2, 5, 3), (5, 3), (5, 3))
    expected = relative_attention(
        q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), a, b, causal=True
    )
    torch.testing.assert_close(relative_attention(q, k, v, a, b, causal=True), expected)


def test_an_empty_row_gives_zeros_and_zero_gradients():
    inputs = [t.requires_grad_() for t in normal((3, 2), (4, 2), (4, 2), (3, 2), (3, 2))]
    mask = torch.tensor([[False] * 4, [True] * 4, [True, False, False, True]])
    output = relative_attention(*inputs, mask=mask)
    assert not output[0].any()
    output[0].sum().backward()
    for tensor in inputs:
        assert tensor.grad is None or not tensor.grad.any()


def test_relative_gradients():
    inputs = [t.requires_grad_() for t in normal((2, 3, 2), (2, 4, 2), (2, 4, 3), (3, 2), (3, 3))]
    assert torch.autograd.gradcheck(relative_attention, inputs)


def test_relative_module():
    torch.manual_seed(0)
    layer = RelativeAttention(4, 2, dropout=0.5).double()
    assert [name for name, _ in layer.named_parameters()] == ["key_table", "value_table"]
    assert layer.key_table.shape == (5, 4)
    q, k, v = normal((2, 6, 4), (2, 6, 4), (2, 6, 4))
    _, weights = layer(q, k, v, return_weights=True)
    assert (weights == 0).any()
    layer.eval()
    output, weights = layer(q, k, v, causal=True, return_weights=True)
    expected = relative_attention(q, k, v, layer.key_table, layer.value_table, causal=True)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 6).double())


def test_relative_attention_moves_with_the_text():
    """The same words three places later get the same answers."""
    q, k, v, a, b = normal((6, 4), (6, 4), (6, 4), (5, 4), (5, 4))
    padded = [torch.cat((torch.ones(3, 4).double(), t)) for t in (q, k, v)]
    mask = torch.arange(9) >= 3
    moved = relative_attention(*padded, a, b, mask=mask.expand(9, 9))[3:]
    torch.testing.assert_close(moved, relative_attention(q, k, v, a, b))


def test_the_key_term_as_a_scheme():
    """A bias of the queries and the distances; with position IDs, by these in place of the order."""
    torch.manual_seed(0)
    scheme, ids = RelativePositions(4, 2).double(), torch.arange(6)
    q, k, v = normal((2, 3, 2, 4), (2, 3, 6, 4), (2, 3, 6, 5))
    bias = scheme.bias(ids[4:], ids, q)
    expected = relative_attention(q, k, v, scheme.key_table, causal=True)
    torch.testing.assert_close(attention(q, k, v, bias=bias, causal=True), expected)
    permuted = torch.tensor([[3, 0, 5, 1, 2, 4], [0, 1, 2, 3, 4, 5]])
    for b in range(2):
        own = scheme.bias(ids[4:], permuted, q)[b]
        torch.testing.assert_close(own, bias[b][..., permuted[b]])


# --- What one might try first ---------------------------------------------------------------------


def test_naive_positions():
    places = torch.tensor([[0, 1], [2, 3]])
    assert integer_positions(places).tolist() == [[[0.0], [1.0]], [[2.0], [3.0]]]
    assert unit_positions(places, 4).squeeze(-1).tolist()[1] == [pytest.approx(2 / 3), 1.0]
    assert unit_positions(torch.tensor([0]), 1).tolist() == [[0.0]]
    assert binary_positions(torch.tensor(6), 4).tolist() == [0.0, 1.0, 1.0, 0.0]


@given(st.integers(0, 2**30 - 1))
def test_binary_digits(number):
    bits = binary_positions(torch.tensor(number), 30, dtype=torch.float64)
    assert float(bits @ 2.0 ** torch.arange(30, dtype=torch.float64)) == number


# --- Malformed calls ------------------------------------------------------------------------------

P, X, T = torch.arange(3), torch.ones(3, 4), torch.ones(5, 4)


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: sinusoidal_positions([0], 4), TypeError, ["positions", "list"]),
        (lambda: sinusoidal_positions(P.float(), 4), TypeError, ["positions", "float32"]),
        (lambda: sinusoidal_positions(P, 0), ValueError, ["d_model", "at least 1"]),
        (lambda: sinusoidal_positions(P, 4.0), TypeError, ["d_model", "an int"]),
        (lambda: sinusoidal_positions(P, 4, base=0), ValueError, ["base", "above 0"]),
        (lambda: sinusoidal_positions(P, 4, base=math.inf), ValueError, ["base", "finite"]),
        (lambda: sinusoidal_positions(P, 4, layout="half"), ValueError, ["layout", "'half'"]),
        (lambda: sinusoidal_positions(P, 4, layout=["halves"]), ValueError, ["layout"]),
        (lambda: sinusoidal_positions(P, 4, dtype=torch.int64), TypeError, ["dtype", "int64"]),
        (
            lambda: sinusoidal_positions(P, 4, dtype="float"),
            TypeError,
            ["dtype", "str", "torch.dtype"],
        ),
        (lambda: shift_matrix(1, 5), ValueError, ["d_model", "5", "even"]),
        (lambda: shift_matrix(1.5, 4), TypeError, ["offset", "float", "an int"]),
        (lambda: shift_matrix(1, 4, layout="x"), ValueError, ["layout", "'x'"]),
        (lambda: SinusoidalPositions(0), ValueError, ["d_model", "at least 1"]),
        (lambda: SinusoidalPositions(4, layout="x"), ValueError, ["layout", "'x'"]),
        (lambda: LearnedPositions(0, 4), ValueError, ["max_length", "at least 1"]),
        (lambda: LearnedPositions(3, "4"), TypeError, ["d_model", "str"]),
        (
            lambda: LearnedPositions(3, 4)(torch.arange(4)),
            ValueError,
            ["position_ids", "below self.max_length = 3", "got 0 to 3"],
        ),
        (lambda: LearnedPositions(3, 4)(P - 1), ValueError, ["position_ids", "got -1"]),
        (lambda: LearnedPositions(3, 4)(P.float()), TypeError, ["position_ids", "float32"]),
        (lambda: SegmentedEmbedding(0, 4), ValueError, ["vocab_size"]),
        (
            lambda: SegmentedEmbedding(5, 4, padding_idx=5),
            ValueError,
            ["padding_idx", "below vocab_size = 5"],
        ),
        (lambda: SegmentedEmbedding(5, 4, padding_idx=-1), ValueError, ["padding_idx"]),
        (lambda: SegmentedEmbedding(5, 4, num_segments=0), ValueError, ["num_segments"]),
        (lambda: SegmentedEmbedding(5, 4, dropout=1.0), ValueError, ["dropout", "[0, 1)"]),
        (
            lambda: SegmentedEmbedding(2, 4)(P[None]),
            ValueError,
            ["tokens", "below self.token.num_embeddings = 2, got 0 to 2"],
        ),
        (lambda: SegmentedEmbedding(5, 4)(torch.tensor(1)), ValueError, ["tokens", "at least 1"]),
        (
            lambda: SegmentedEmbedding(5, 4)(P[None], P[None]),
            ValueError,
            ["segments", "num_embeddings = 2, got 0 to 2"],
        ),
        (
            lambda: SegmentedEmbedding(5, 4)(P[None], P[:1]),
            ValueError,
            ["segments", "(1,)", "(1, 3)"],
        ),
        (
            lambda: SegmentedEmbedding(5, 4, max_length=2)(P[None]),
            ValueError,
            ["position_ids", "below self.max_length = 2, got 0 to 2"],
        ),
        (lambda: relative_distances(-1, 2, 1), ValueError, ["num_queries"]),
        (lambda: relative_distances(1, 2, -1), ValueError, ["max_distance"]),
        (lambda: relative_attention(X, X, X, T[:4]), ValueError, ["key_table", "(4, 4)", "odd"]),
        (
            lambda: relative_attention(X, X, X, T[:, :2]),
            ValueError,
            ["key_table", "(5, 2)", "(rows, 4) as in query"],
        ),
        (lambda: relative_attention(X, X, X, T, T[:3]), ValueError, ["value_table", "(5, 4)"]),
        (lambda: relative_attention(X, X, X, T[0]), ValueError, ["key_table", "2 axes"]),
        (lambda: relative_attention(X, X, X, T.double()), TypeError, ["key_table", "float64"]),
        (lambda: relative_attention(X[0], X, X, T), ValueError, ["query", "at least 2 axes"]),
        (lambda: relative_attention(X, X.int(), X, T), TypeError, ["key", "int32"]),
        (lambda: relative_attention(X, X, X[:2], T), ValueError, ["value"]),
        (lambda: RelativeAttention(4, -1), ValueError, ["max_distance"]),
        (lambda: RelativePositions(0, 1), ValueError, ["d_head"]),
        (lambda: RelativePositions(4, -1), ValueError, ["max_distance"]),
        (lambda: RelativePositions(4, 1).bias(P, P), TypeError, ["missing", "query"]),
        (lambda: RelativePositions(4, 1).bias(P, P, X), ValueError, ["query", "4 axes"]),
        (
            lambda: RelativePositions(3, 1).bias(P, P, X[None, None]),
            ValueError,
            ["query", "(1, 1, 3, 4)", "(B, H, 3, 3)"],
        ),
        (lambda: integer_positions(X), TypeError, ["positions", "float32"]),
        (lambda: unit_positions(P, 0), ValueError, ["length"]),
        (
            lambda: binary_positions(P, 1),
            ValueError,
            ["positions", "num_bits = 1 bits, got 0 to 2"],
        ),
        (lambda: binary_positions(P, 0), ValueError, ["num_bits"]),
    ],
)
def test_malformed_calls(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value
