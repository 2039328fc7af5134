"""MultiHeadAttention with positions, a window and heads of any size: against transformers, and cached."""

import copy
import math

import pytest
import torch
from torch import nn

from tested_transformer import (
    ALiBi,
    HeadByHead,
    KeyValueCache,
    LearnedPositions,
    MultiHeadAttention,
    PositionScheme,
    RelativePositions,
    RotaryPositions,
    apply_rotary,
    attention,
    concat_heads,
    split_heads,
    window_mask,
)
from tested_transformer.models.convert_torch import attention_to_torch

EPS32 = torch.finfo(torch.float32).eps


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


class Distances(PositionScheme):
    """A learned bias per head and distance, clipped: a scheme that has `bias` alone, as T5's."""

    def __init__(self, num_heads, max_distance=4):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_heads, max_distance + 1))

    def bias(self, query_ids, key_ids, query=None):
        distance = (query_ids[:, None] - key_ids).abs().clamp(max=self.weight.shape[1] - 1)
        return self.weight[:, distance][None]  # 1 H L S


SCHEMES = {
    "rotary": lambda: RotaryPositions(4),
    "rotary, halves, in part": lambda: RotaryPositions(4, layout="halves", rotary_dim=2),
    "alibi": lambda: ALiBi(6),
    "relative": lambda: RelativePositions(4, 2),
    "a bias": lambda: Distances(6),
    "none": lambda: None,
}


def layer_of(scheme, *, window=None, seed=0, **options):
    """6 query heads and 2 KV heads of 4 features for a D of 10: every size differs."""
    torch.manual_seed(seed)
    options = {"num_kv_heads": 2, "d_head": 4, "positions": SCHEMES[scheme](), **options}
    return MultiHeadAttention(10, 6, window=window, **options).double().eval()


# --- Against the formula and transformers ---------------------------------------------------------


def test_the_size_of_a_head_is_free():
    layer = MultiHeadAttention(10, 3, num_kv_heads=1, d_head=4)
    assert layer.query.weight.shape == (12, 10)
    assert layer.key.weight.shape == layer.value.weight.shape == (4, 10)
    assert layer.output.weight.shape == (10, 12)
    assert layer(torch.ones(2, 5, 10)).shape == (2, 5, 10)
    assert MultiHeadAttention(12, 3).d_head == 4


def test_each_step_by_hand():
    layer, x, ids = (
        layer_of("rotary", window=3),
        normal(2, 5, 10),
        torch.tensor([[0, 1, 2, 3, 4]] * 2),
    )
    query, key, value = (
        split_heads(part(x), heads)
        for part, heads in ((layer.query, 6), (layer.key, 2), (layer.value, 2))
    )
    query, key = apply_rotary(query, ids), apply_rotary(key, ids)
    heads, expected_weights = attention(
        query, key, value, causal=True, window=3, return_weights=True
    )
    output, weights = layer(x, causal=True, return_weights=True)
    torch.testing.assert_close(output, layer.output(concat_heads(heads)))
    torch.testing.assert_close(weights, expected_weights)


def change_of_output(layer, x, error):
    """How far outputs may move when each score moves by `error`: weights by 2 error of themselves."""
    value, output = layer.value(x).detach(), layer.output.weight.detach()
    return 2 * error * float(value.abs().max() * output.abs().sum(1).max())


def llama_and_ours(window, attention_bias, base=500000.0):
    """Their layer and ours with the same weights: grouped-query attention of another size than D / H, in halves."""
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=12, num_attention_heads=6, num_key_value_heads=2, head_dim=4,
        attention_bias=attention_bias, attn_implementation="sdpa",
        rope_parameters={"rope_type": "default", "rope_theta": base},
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = llama.LlamaAttention(config, 0).double().eval()
    ours = MultiHeadAttention(
        12, 6, num_kv_heads=2, d_head=4, bias=attention_bias, window=window,
        positions=RotaryPositions(4, base=base, layout="halves"),
    ).double().eval()  # fmt: skip
    with torch.no_grad():
        for mine, other in LLAMAS_PARTS.items():
            getattr(ours, mine).load_state_dict(getattr(theirs, other).state_dict())
    return theirs, ours, llama.LlamaRotaryEmbedding(config)


LLAMAS_PARTS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
IDS = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 2, 3, 4]])  # the second is padded by 2
REAL = torch.tensor([[True] * 7, [False] * 2 + [True] * 5])


def their_mask(window):
    """True where a query may attend; theirs has no fully masked rows, so padding attends to all."""
    allowed = REAL[:, None, None, :] & torch.ones(7, 7, dtype=torch.bool).tril()
    if window is not None:
        allowed = allowed & window_mask(7, 7, window=window)
    return allowed | ~allowed.any(-1, keepdim=True)


@pytest.mark.parametrize("attention_bias", [False, True])
@pytest.mark.parametrize("window", [None, 3])
def test_llamas_attention(window, attention_bias):
    """Outputs for real tokens, up to their angles in float32 (see `bound` in test_rotary)."""
    theirs, ours, embedding = llama_and_ours(window, attention_bias)
    x = normal(2, 7, 12)
    with torch.no_grad():
        expected = theirs(x, embedding(x, IDS), their_mask(window))[0]
        got = ours(x, mask=REAL[:, None, None, :], causal=True, position_ids=IDS)
        angle = 6 * (math.log(5e5) + 3) / 2 * EPS32 + EPS32
        longest = ours.query(x).norm(dim=-1).max() * ours.key(x).norm(dim=-1).max()
        slack = change_of_output(ours, x, 2 * angle * float(longest) / 2)  # the root of d is 2
    assert float((got - expected)[REAL].abs().max()) <= slack


@pytest.mark.parametrize("window", [None, 3])
def test_llamas_gradients(window):
    """With cosines and sines of angles in float64 nothing but float64's rounding is left."""
    theirs, ours, _ = llama_and_ours(window, attention_bias=False)
    x = normal(2, 7, 12)
    angles = IDS[..., None].double() * 500000.0 ** -torch.tensor([0.0, 0.5] * 2).double()
    expected = theirs(x, (angles.cos(), angles.sin()), their_mask(window))[0][REAL]
    got = ours(x, mask=REAL[:, None, None, :], causal=True, position_ids=IDS)[REAL]
    torch.testing.assert_close(got, expected)
    (got**2).sum().backward()
    (expected**2).sum().backward()
    for mine, other in LLAMAS_PARTS.items():
        gradients = getattr(ours, mine).weight.grad, getattr(theirs, other).weight.grad
        torch.testing.assert_close(*gradients)


def test_mpts_attention():
    """MPT's own module, with the bias that MPT makes in float32 and a softmax in float32."""
    mpt = pytest.importorskip("transformers.models.mpt.modeling_mpt")
    transformers = pytest.importorskip("transformers")
    config = transformers.MptConfig(d_model=24, n_heads=6, max_seq_len=32)
    torch.manual_seed(0)
    theirs = mpt.MptAttention(config, layer_idx=0).double().eval()
    ours = MultiHeadAttention(24, 6, bias=False, positions=ALiBi(6)).double().eval()
    parts = ours.query, ours.key, ours.value
    x, future = normal(2, 5, 24), torch.ones(5, 5, dtype=torch.bool).triu(1)
    with torch.no_grad():
        for part, weight in zip(parts, theirs.Wqkv.weight.chunk(3), strict=True):
            part.weight.copy_(weight)
        ours.output.weight.copy_(theirs.out_proj.weight)
        bias = mpt.build_mpt_alibi_tensor(6, 32)
        expected = theirs(x, bias.double(), None, future.expand(2, 1, 5, 5))[0]
        largest = float(
            bias.abs().max() + ours.query(x).norm(dim=-1).max() * ours.key(x).norm(dim=-1).max()
        )
        slack = change_of_output(ours, x, 4 * EPS32 * (largest + 1))
        assert float((ours(x, causal=True) - expected).abs().max()) <= slack


# --- Cached = uncached ----------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("chunk", [1, 2, 3, 4])  # window 3: w and w + 1 among them
def test_cached_equals_uncached(scheme, window, chunk):
    layer, x = layer_of(scheme, window=window), normal(2, 9, 10)
    with torch.no_grad():
        whole = layer(x, causal=True)
        for parts in (x.split(chunk, 1), (x[:, :5], *x[:, 5:].split(chunk, 1))):
            cache = KeyValueCache(capacity=2)
            chunks = [layer(part, causal=True, cache=cache) for part in parts]
            torch.testing.assert_close(torch.cat(chunks, 1), whole)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("window", [None, 3])
def test_a_padded_batch_equals_each_sequence_alone(scheme, window):
    """Padding on the left, position IDs that start at the first real token, with a cache and without."""
    layer, lengths = layer_of(scheme, window=window), (7, 4, 1)
    x, real = normal(3, 7, 10), torch.arange(7) >= 7 - torch.tensor(lengths)[:, None]
    ids = (real.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        cache, chunks = KeyValueCache(), []
        for start, stop in ((0, 4), (4, 5), (5, 7)):
            options = {"mask": real[:, None, None, :stop], "causal": True, "cache": cache}
            chunks.append(layer(x[:, start:stop], position_ids=ids[:, start:stop], **options))
        whole = layer(x, mask=real[:, None, None, :], causal=True, position_ids=ids)
        for b, length in enumerate(lengths):
            alone = layer(x[b : b + 1, 7 - length :], causal=True)[0]
            torch.testing.assert_close(whole[b, 7 - length :], alone)
            torch.testing.assert_close(torch.cat(chunks, 1)[b, 7 - length :], alone)


def test_rotary_position_ids_matter_by_their_differences():
    layer, x = layer_of("rotary"), normal(1, 5, 10)
    near = layer(x, causal=True)
    torch.testing.assert_close(layer(x, causal=True, position_ids=torch.arange(5) + 100), near)
    far = layer(x, causal=True, position_ids=3 * torch.arange(5))
    assert not torch.allclose(far[:, 1:], near[:, 1:])


@pytest.mark.parametrize("scheme", ["rotary", "alibi", "relative", "a bias"])
def test_order_is_seen(scheme):
    """Without a scheme the last query does not know the order of the others."""
    swap = [2, 1, 0, 3]
    for name, is_seen in ((scheme, True), ("none", False)):
        layer, x = layer_of(name), normal(1, 4, 10)
        same = torch.allclose(layer(x)[:, -1], layer(x[:, swap])[:, -1])
        assert same is not is_seen


# --- What is added to the scores ------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["alibi", "a bias"])
@pytest.mark.parametrize("backend", ["auto", "plain", "tiled"])
def test_the_biases_of_call_and_scheme_add_up(scheme, backend):
    layer, x, bias = layer_of(scheme, backend=backend), normal(2, 4, 10), normal(2, 6, 4, 4, seed=1)
    plain, ids = copy.deepcopy(layer), torch.arange(4)
    plain.positions = None
    both = bias + layer.positions.bias(ids, ids).double()
    torch.testing.assert_close(layer(x, bias=bias), plain(x, bias=both))


def test_a_window_is_a_mask():
    layer, plain, x = layer_of("rotary", window=2), layer_of("rotary"), normal(2, 6, 10)
    for causal in (False, True):
        expected = plain(x, mask=window_mask(6, 6, window=2), causal=causal)
        torch.testing.assert_close(layer(x, causal=causal), expected)


# --- Gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_gradients(scheme):
    layer, x = layer_of(scheme, window=3), normal(1, 4, 10).requires_grad_()
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def output(x, *values):
        with_values = dict(zip(names, values, strict=True))
        return torch.func.functional_call(layer, with_values, (x,), {"causal": True})

    assert torch.autograd.gradcheck(output, (x, *parameters), fast_mode=True)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_parameter_learns(scheme):
    """Keys get no gradient from their bias: it adds the same to all scores of a query, unless rotated."""
    layer = layer_of(scheme)
    (layer(normal(2, 5, 10), causal=True) ** 2).sum().backward()
    for name, parameter in layer.named_parameters():
        learns = bool((parameter.grad.abs() > 1e-9).any())
        assert learns == (name != "key.bias" or scheme.startswith("rotary")), name


def test_a_scheme_that_learns_is_a_part_of_the_layer():
    layer = layer_of("a bias")
    assert "positions.weight" in layer.state_dict()
    assert not any("positions" in name for name in layer_of("alibi").state_dict())


# --- Malformed calls ------------------------------------------------------------------------------

X = torch.ones(2, 3, 6)


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: MultiHeadAttention(6, 2, d_head=0), ValueError, ["d_head", "at least 1"]),
        (lambda: MultiHeadAttention(6, 2, d_head=3.0), TypeError, ["d_head", "float"]),
        (lambda: MultiHeadAttention(6, 4, d_head=2, num_kv_heads=3), ValueError, ["num_kv_heads"]),
        (lambda: MultiHeadAttention(6, 2, window=0), ValueError, ["window", "at least 1"]),
        (lambda: MultiHeadAttention(6, 2, window=2.5), TypeError, ["window", "float"]),
        (
            lambda: MultiHeadAttention(6, 2, positions="rotary"),
            TypeError,
            ["positions", "str", "PositionScheme"],
        ),
        (
            lambda: MultiHeadAttention(6, 2, positions=ALiBi(2))(X, X),
            ValueError,
            ["context", "self-attention"],
        ),
        (
            lambda: MultiHeadAttention(6, 2, positions=RotaryPositions(4))(X),
            ValueError,
            ["query", "(2, 2, 3, 3)", "4) as in self.d_head"],
        ),
        (
            lambda: MultiHeadAttention(8, 2, positions=RotaryPositions(4))(
                torch.ones(2, 3, 8), position_ids=torch.arange(2)
            ),
            ValueError,
            ["position_ids", "(2,)", "(2, 3) as in x"],
        ),
        (
            lambda: HeadByHead(MultiHeadAttention(6, 2, positions=ALiBi(2))),
            ValueError,
            ["joined.positions", "ALiBi", "expected None"],
        ),
        (
            lambda: HeadByHead(MultiHeadAttention(6, 2, window=3)),
            ValueError,
            ["joined.window", "expected None, got 3"],
        ),
        (
            lambda: attention_to_torch(MultiHeadAttention(6, 2, window=3)),
            ValueError,
            ["ours.window", "expected None, got 3"],
        ),
        (
            lambda: attention_to_torch(MultiHeadAttention(6, 2, d_head=5)),
            ValueError,
            ["ours.d_head", "expected 3.0, got 5"],
        ),
    ],
)
def test_malformed(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value


def test_positions_that_are_added_to_embeddings_do_nothing_here():
    layer = MultiHeadAttention(6, 2, positions=LearnedPositions(9, 6)).eval()
    plain = MultiHeadAttention(6, 2).eval()
    plain.load_state_dict(layer.state_dict(), strict=False)
    torch.testing.assert_close(layer(X, causal=True), plain(X, causal=True))


def test_head_by_head_with_heads_of_any_size():
    layer, x = MultiHeadAttention(10, 6, num_kv_heads=2, d_head=4).double(), normal(2, 5, 10)
    torch.testing.assert_close(HeadByHead(layer)(x, causal=True), layer(x, causal=True))
