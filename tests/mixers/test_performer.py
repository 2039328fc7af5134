"""Performer: an unbiased estimate whose variance is known, causal in chunks, stable, and never exact."""

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from same_numbers import assert_same_numbers
from tested_transformer.mixers.performer import (
    orthogonal_directions,
    performer_attention,
    positive_features,
    trigonometric_features,
)
from tested_transformer.specs.judge import judge
from tested_transformer.specs.performer.spec import PERFORMER_ATTENTION

EPS = torch.finfo(torch.float64).eps
FEATURES = {"positive": positive_features, "trigonometric": trigonometric_features}
EACH = pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES)


def numbers(*shape, seed=1):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


QUERY, KEY, VALUE = numbers(2, 3, 9, 4), numbers(2, 3, 9, 4, seed=2), numbers(2, 3, 9, 5, seed=3)
DIRECTIONS = numbers(11, 4, seed=4)


def test_the_spec():
    verdict = judge(PERFORMER_ATTENTION, performer_attention)
    assert verdict.passed, verdict


# --- The estimate ---------------------------------------------------------------------------------


def variances(x, y):
    """Of one direction's estimate of exp(x y), by its definition: positive features, and trigonometric ones."""
    kernel, both, apart = math.exp(x @ y), float((x + y) @ (x + y)), float((x - y) @ (x - y))
    size = float(x @ x + y @ y)
    return {
        "positive": kernel**2 * math.expm1(both),
        "trigonometric": math.exp(size) * (1 - math.exp(-apart)) ** 2 / 2,
    }


PAIRS = [(0.6, 0.5, 0.3), (0.6, 0.5, -0.9), (0.3, 0.2, 1.0), (0.8, 0.8, -1.0)]


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("kind", FEATURES)
def test_the_estimate_is_unbiased(kind, pair):
    """Its mean over independent directions is off by less than six of its own standard deviations.

    The deviation is computed, not measured. By Chebyshev's inequality a correct estimate fails once in 36
    seeds at most, and the seed is fixed; a bias of a tenth of the kernel would be seen.
    """
    long, short, cosine = pair
    x = torch.tensor([long, 0.0, 0.0]).double()
    y = short * torch.tensor([cosine, math.sqrt(1 - cosine**2), 0.0]).double()
    count = 200_000
    w = numbers(count, 3, seed=8)
    features = FEATURES[kind]
    estimate = float(features(x[None], w)[0] @ features(y[None], w)[0])
    deviation = math.sqrt(variances(x, y)[kind] / count)
    assert abs(estimate - math.exp(x @ y)) <= 6 * deviation + 1e-12
    assert 6 * deviation < 0.1 * math.exp(x @ y)


def test_the_variances_cross():
    """Where the kernel is near zero positive features win; for equal vectors trigonometric ones are exact."""
    x = torch.tensor([1.5, 0.0]).double()
    away, same = variances(x, -x), variances(x, x)
    assert away["positive"] == 0.0
    assert away["trigonometric"] > 40 * math.exp(-2 * 2.25)
    assert same["trigonometric"] == 0.0
    assert same["positive"] > 1.0


def test_the_error_falls_as_the_root_of_the_directions():
    """Sixteen times as many independent directions divide the root of the mean square error by 4.

    Over 400 estimates the ratio of two mean squares is off by a factor of 2 only if one of them is by the
    root of 2; the computed variance says where each must be.
    """
    x, y = 0.5 * numbers(2, 4, seed=9) / 2
    for count in (16, 256):
        w = numbers(400, count, 4, seed=count)
        errors = [
            float(positive_features(x[None], each)[0] @ positive_features(y[None], each)[0])
            - math.exp(x @ y)
            for each in w
        ]
        square = sum(e * e for e in errors) / len(errors)
        expected = variances(x, y)["positive"] / count
        assert expected / math.sqrt(2) < square < expected * math.sqrt(2)


@pytest.mark.parametrize("seed", range(3))
def test_orthogonal_directions_err_less(seed):
    """The mean square error of 4000 estimates, of 8 orthogonal directions each, against that of independent ones."""
    generator = torch.Generator().manual_seed(seed)
    x, y = 0.8 * torch.nn.functional.normalize(numbers(2, 8, seed=20 + seed), dim=-1)
    w = orthogonal_directions(8 * 4000, 8, generator=generator).double().view(4000, 8, 8)
    estimates = (w @ (x + y) - (x @ x + y @ y) / 2).exp().mean(-1)
    square = float((estimates - math.exp(x @ y)).square().mean())
    assert square < 0.9 * variances(x, y)["positive"] / 8


@pytest.mark.parametrize(("count", "d"), [(1, 3), (4, 4), (5, 4), (12, 4), (3, 1)])
def test_blocks_are_orthogonal(count, d):
    w = orthogonal_directions(count, d, generator=torch.Generator().manual_seed(1)).double()
    assert w.shape == (count, d)
    for block in w.split(d):
        unit = block / block.norm(dim=-1, keepdim=True)
        torch.testing.assert_close(
            unit @ unit.mT, torch.eye(len(block)).double(), atol=1e-5, rtol=0
        )


def test_each_direction_is_gaussian():
    """The mean of 4000 first directions is near 0 and their mean squared norm near d.

    Without the signs of R's diagonal the first direction's first entry is never positive.
    """
    generator = torch.Generator().manual_seed(5)
    first = torch.stack([orthogonal_directions(1, 3, generator=generator)[0] for _ in range(4000)])
    assert float(first.mean(0).abs().max()) < 5 / math.sqrt(4000)
    assert abs(float(first.square().sum(-1).mean()) - 3) < 5 * math.sqrt(6 / 4000)
    raw = torch.stack(
        [torch.linalg.qr(torch.randn(3, 3, generator=generator))[0].mT[0] for _ in range(50)]
    )
    assert float(raw[:, 0].max()) < 0


# --- Attention ------------------------------------------------------------------------------------


def by_definition(query, key, value, directions, causal):
    """The whole matrix of estimated kernels, with the features' own dot products."""
    root = query.shape[-1] ** -0.25
    kernel = (
        positive_features(root * query, directions) @ positive_features(root * key, directions).mT
    )
    kernel = kernel.tril() if causal else kernel
    return kernel / kernel.sum(-1, keepdim=True) @ value


def runs(function, **options):
    """Output and every gradient, as a function of a dtype."""

    def run(dtype):
        given = [
            each.clone().to(dtype).detach().requires_grad_()
            for each in (QUERY, KEY, VALUE, DIRECTIONS)
        ]
        output = function(*given, **options)
        (output * numbers(*output.shape, seed=7).to(dtype)).sum().backward()
        return {"output": [output], "gradients": [each.grad for each in given]}

    return run


@pytest.mark.parametrize("chunk_size", [1, 2, 4, 9, 100])
def test_causal_chunks_of_any_size_and_their_gradients(chunk_size):
    chunked = runs(performer_attention, causal=True, chunk_size=chunk_size)
    assert_same_numbers(chunked, runs(by_definition, causal=True))


def test_all_keys_and_their_gradients():
    assert_same_numbers(runs(performer_attention), runs(by_definition, causal=False))


@pytest.mark.parametrize("causal", [False, True])
def test_many_directions_approach_the_softmax(causal):
    """There is no dense limit at a finite number of directions: the error shrinks, and is never 0."""
    exact = scaled_dot_product_attention(QUERY, KEY, VALUE, is_causal=causal)
    errors = []
    for count in (64, 16384):
        w = numbers(count, 4, seed=12)
        errors.append(
            float(
                (performer_attention(QUERY, KEY, VALUE, w, causal=causal) - exact)
                .square()
                .mean()
                .sqrt()
            )
        )
    assert 1e-3 < errors[1] < errors[0] / 4


@pytest.mark.parametrize(("size", "factor"), [(1.0, 0.0), (1.0, 30.0), (60.0, 0.0)])
@pytest.mark.parametrize("chunk_size", [2, 4, 100])
def test_later_tokens_change_no_earlier_output(chunk_size, size, factor):
    """Not even by underflow: next to a key of 0, the features of keys 60 times as large are 0 in float64."""
    keys = size * KEY
    changed = [keys.clone(), VALUE.clone()]
    changed[0][:, :, 5:] *= factor
    changed[1][:, :, 5:] += 1.0
    before, after = (
        performer_attention(QUERY, key, value, DIRECTIONS, causal=True, chunk_size=chunk_size)
        for key, value in ((keys, VALUE), changed)
    )
    torch.testing.assert_close(before[:, :, :5], after[:, :, :5], rtol=0, atol=64 * EPS)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_keeps_its_dtype(dtype, causal):
    """Logarithms of more than 11 overflow float16, whose exponential must not be taken there."""
    given = [4 * QUERY.to(dtype), 4 * KEY.to(dtype), VALUE.to(dtype), DIRECTIONS.to(dtype)]
    found = performer_attention(*given, causal=causal)
    wide = performer_attention(*(each.float() for each in given), causal=causal)
    assert found.dtype == dtype
    torch.testing.assert_close(found, wide.to(dtype))


@pytest.mark.parametrize("causal", [False, True])
def test_padding_is_no_key(causal):
    real = torch.ones(2, 9, dtype=torch.bool)
    real[1, :4] = False
    together = performer_attention(
        QUERY, KEY, VALUE, DIRECTIONS, key_mask=real, causal=causal, chunk_size=3
    )
    short = [each[1:, :, 4:] for each in (QUERY, KEY, VALUE)]
    alone = performer_attention(*short, DIRECTIONS, causal=causal)
    torch.testing.assert_close(together[1:, :, 4:], alone, rtol=0, atol=64 * EPS)
    if causal:
        assert together[1:, :, :4].abs().max() == 0


def test_a_query_without_keys_has_finite_gradients():
    inputs = [each.clone().requires_grad_() for each in (QUERY, KEY, VALUE)]
    real = torch.zeros(2, 9, dtype=torch.bool)
    for causal in (False, True):
        output = performer_attention(*inputs, DIRECTIONS, key_mask=real, causal=causal)
        output.sum().backward()
        assert output.abs().max() == 0
    assert all(bool(torch.isfinite(each.grad).all()) for each in inputs)


def test_causal_wants_as_many_keys_as_queries():
    with pytest.raises(ValueError, match=r"key: expected as many as queries"):
        performer_attention(QUERY[:, :, :4], KEY, VALUE, DIRECTIONS, causal=True)


@pytest.mark.parametrize("causal", [False, True])
def test_memory_grows_with_the_length(causal):
    """No tensor that autograd keeps has L x L numbers."""
    length, saved = 1024, []
    query = torch.randn(1, 1, length, 8, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved.append(t.numel()) or t, lambda t: t
    ):
        performer_attention(query, query, query, torch.randn(16, 8), causal=causal).sum()
    assert max(saved) <= 16 * length
