"""ALiBi: the authors' slopes, transformers' BLOOM and MPT, and `attention` with slopes."""

import math

import numpy as np
import pytest
import torch

from tested_transformer import ALiBi, MultiHeadAttention, alibi_slopes, attention, judge, reference
from tested_transformer.specs.alibi.mutants import BiasFormula, slopes
from tested_transformer.specs.alibi.spec import ALIBI_BIAS, ALIBI_SLOPES

HEADS = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 33, 40, 112]
EPS32 = torch.finfo(torch.float32).eps


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize(
    ("spec", "right"),
    [
        (ALIBI_SLOPES, alibi_slopes),
        (ALIBI_SLOPES, slopes),
        (ALIBI_BIAS, ALiBi),
        (ALIBI_BIAS, BiasFormula()),
    ],
)
def test_right_implementations_pass(spec, right):
    verdict = judge(spec, right)
    assert verdict.passed, verdict
    assert not verdict.skipped


@pytest.mark.parametrize("num_heads", HEADS)
def test_slopes_against_the_recursion(num_heads):
    """A power of two in float32 is off by half an eps, and its exponent has no rounding error."""
    got, expected = alibi_slopes(num_heads), reference.alibi_slopes(num_heads).astype(float)
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.double(), expected, rtol=2 * EPS32)


@pytest.mark.parametrize("num_heads", [3, 6, 12, 20])
def test_the_heads_past_a_power_of_two_lie_between_the_others(num_heads):
    found = alibi_slopes(num_heads).tolist()
    assert len(set(found)) == num_heads
    assert all(2**-8 <= slope <= 1 for slope in found)


@pytest.mark.parametrize("num_heads", HEADS)
@pytest.mark.parametrize("length", [1, 6])
def test_blooms_tensor(num_heads, length):
    """Theirs is slope x key position: the same but for a constant in each row, which softmax ignores."""
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    theirs = bloom.build_alibi_tensor(torch.ones(2, length), num_heads, torch.float32)
    theirs = theirs.view(2, num_heads, 1, length)
    assert_differ_by_a_constant_in_each_row(theirs[:1], num_heads, length)


@pytest.mark.parametrize("num_heads", HEADS)
@pytest.mark.parametrize("length", [1, 6])
def test_mpts_tensor(num_heads, length):
    mpt = pytest.importorskip("transformers.models.mpt.modeling_mpt")
    theirs = mpt.build_mpt_alibi_tensor(num_heads, length)[None]
    assert_differ_by_a_constant_in_each_row(theirs, num_heads, length)


def assert_differ_by_a_constant_in_each_row(theirs, num_heads, length):
    """Up to each query's own position; a base to the power of up to 2n has n roundings of an eps."""
    ids = torch.arange(length)
    ours = ALiBi(num_heads).bias(ids, ids)
    own = theirs.expand_as(ours).diagonal(dim1=-2, dim2=-1)[..., None]
    past = torch.ones(length, length, dtype=torch.bool).tril()
    torch.testing.assert_close(
        ours[..., past], (theirs - own)[..., past], rtol=2 * num_heads * EPS32, atol=length * EPS32
    )


@pytest.mark.parametrize("num_heads", [4, 6])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 2, 5])
def test_bias_and_slopes_are_the_same_in_attention(num_heads, causal, length):
    scheme, keys = ALiBi(num_heads), torch.arange(5)
    query, key, value = (normal(2, num_heads, n, 3, seed=n) for n in (length, 5, 5))
    bias = scheme.bias(keys[5 - length :], keys)
    by_bias = attention(query, key, value, bias=bias, causal=causal)
    by_slopes = attention(query, key, value, alibi_slopes=scheme.slopes(query), causal=causal)
    torch.testing.assert_close(by_bias, by_slopes)


def test_against_bloom_in_attention():
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    query, key, value = (normal(2, 6, 5, 4, seed=n) for n in range(3))
    theirs = bloom.build_alibi_tensor(torch.ones(2, 5), 6, torch.float64).view(2, 6, 1, 5)
    expected = attention(query, key, value, bias=theirs, causal=True)
    got = attention(query, key, value, alibi_slopes=alibi_slopes(6), causal=True)
    torch.testing.assert_close(got, expected, rtol=0, atol=5 * 12 * EPS32 * value.abs().max())


def test_ids_of_each_sequence_and_of_all():
    scheme, ids = ALiBi(3), torch.tensor([[0, 0, 1], [0, 1, 2]])
    bias = scheme.bias(ids, ids)
    assert bias.shape == (2, 3, 3, 3)
    for b in range(2):
        assert torch.equal(bias[b : b + 1], scheme.bias(ids[b], ids[b]))
    assert torch.equal(scheme.bias(ids[:, 1:], ids[0]), bias[:, :, 1:, :].new_tensor(
        reference.alibi_bias(ids[:, 1:].numpy(), ids[0].numpy(), 3).astype(np.float32)))  # fmt: skip


def test_the_scheme_has_nothing_to_learn_or_store():
    scheme, x = ALiBi(6), normal(2, 3, 5)
    assert not list(scheme.parameters())
    assert not scheme.state_dict()
    assert scheme.embed(x, torch.arange(3)) is x
    heads = normal(2, 6, 3, 5)
    assert scheme.rotate(heads, heads, torch.arange(3)) == (heads, heads)
    assert scheme.half().slopes(x.half()).dtype == torch.float32
    assert repr(scheme) == "ALiBi(6)"


def test_a_layer_with_alibi_makes_no_bias_of_its_own():
    """The slopes go to `attention`, whose tiled backend has no memory of size L x S."""
    layer = MultiHeadAttention(12, 3, positions=ALiBi(3), backend="tiled").double().eval()
    layer.positions.bias = None  # not called
    plain = MultiHeadAttention(12, 3, backend="plain").double().eval()
    plain.load_state_dict(layer.state_dict())
    x, ids = normal(2, 5, 12), torch.arange(5)
    expected = plain(x, bias=ALiBi(3).bias(ids, ids), causal=True)
    torch.testing.assert_close(layer(x, causal=True), expected)


P = torch.arange(3)


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: alibi_slopes(0), ValueError, ["num_heads", "at least 1"]),
        (lambda: alibi_slopes(4.0), TypeError, ["num_heads", "float"]),
        (lambda: ALiBi(0), ValueError, ["num_heads", "at least 1"]),
        (lambda: ALiBi("8"), TypeError, ["num_heads", "str"]),
        (lambda: ALiBi(2).bias(P.float(), P), TypeError, ["query_ids", "float32"]),
        (lambda: ALiBi(2).bias(P, [0]), TypeError, ["key_ids", "list"]),
        (
            lambda: ALiBi(2).bias(P, P[None, None]),
            ValueError,
            ["key_ids", "(S,) or (B, S)", "(1, 1, 3)"],
        ),
        (
            lambda: MultiHeadAttention(6, 3, positions=ALiBi(2))(torch.ones(1, 2, 6)),
            ValueError,
            ["alibi_slopes", "(2,)", "(3,)"],
        ),
    ],
)
def test_malformed_calls(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value


def test_the_first_slope_is_two_to_the_minus_eight_over_n():
    for num_heads in (1, 2, 4, 8, 16):
        assert math.isclose(float(alibi_slopes(num_heads)[0]), 2 ** (-8 / num_heads), rel_tol=EPS32)
        assert float(alibi_slopes(num_heads)[-1]) == 2**-8
