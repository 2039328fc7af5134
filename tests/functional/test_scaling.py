"""scaling.py against the reference, torch, autograd, and what must hold for any scores."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tested_transformer import attention, judge, reference
from tested_transformer.experiments.ch03_score_statistics import score_statistics
from tested_transformer.functional.scaling import (
    entropy,
    fold_scale,
    perplexity,
    scaled_scores,
    score_gap,
    softmax,
    softmax_jacobian,
)
from tested_transformer.specs.scaling.spec import (
    SCALED_SCORES,
    SOFTMAX,
    SOFTMAX_JACOBIAN,
    plain_jacobian,
    plain_scores,
    plain_softmax,
)

IMPLEMENTATIONS = [
    (SOFTMAX, softmax),
    (SOFTMAX, lambda scores, *, temperature=1.0: torch.softmax(scores / temperature, -1)),
    (SOFTMAX, plain_softmax),
    (SOFTMAX_JACOBIAN, softmax_jacobian),
    (SOFTMAX_JACOBIAN, plain_jacobian),
    (SCALED_SCORES, scaled_scores),
    (SCALED_SCORES, plain_scores),
]
ROWS = st.lists(st.floats(-50, 50), min_size=1, max_size=8).map(
    lambda row: torch.tensor(row, dtype=torch.float64)
)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("spec", "function"), IMPLEMENTATIONS)
def test_implementations_pass(spec, function, seed):
    verdict = judge(spec, function, seed=seed)
    assert verdict.passed, verdict
    assert not verdict.skipped


def test_the_two_references_of_the_jacobian_agree():
    scores = np.random.default_rng(0).normal(size=6)
    first = reference.softmax_jacobian(scores)
    second = reference.jacobian_of_weights(reference.softmax(scores))
    np.testing.assert_allclose(first, second, atol=1e-16)


@given(ROWS, st.floats(-1000, 1000))
def test_softmax_ignores_a_shift(scores, shift):
    torch.testing.assert_close(softmax(scores + shift), softmax(scores), rtol=1e-9, atol=1e-12)


@given(ROWS, st.floats(0.1, 100))
def test_softmax_and_temperature(scores, temperature):
    weights = softmax(scores, temperature=temperature)
    torch.testing.assert_close(weights, torch.softmax(scores / temperature, -1))
    # what is largest stays so: of two that differ by less than rounding, either is
    torch.testing.assert_close(weights[softmax(scores).argmax()], weights.max())
    hotter = softmax(scores, temperature=2 * temperature)
    assert entropy(hotter) >= entropy(weights) - 1e-12


@given(ROWS)
def test_jacobian_rows_sum_to_zero_and_it_is_positive_semidefinite(scores):
    jacobian = softmax_jacobian(softmax(scores))
    assert jacobian.sum(-1).abs().max() < 1e-14
    assert torch.equal(jacobian, jacobian.mT)
    assert torch.linalg.eigvalsh(jacobian).min() > -1e-14


@settings(max_examples=30)
@given(ROWS)
def test_jacobian_is_autograd_s(scores):
    expected = torch.autograd.functional.jacobian(lambda s: torch.softmax(s, -1), scores)
    torch.testing.assert_close(softmax_jacobian(softmax(scores)), expected)


@given(ROWS)
def test_perplexity_counts_keys(scores):
    weights = softmax(scores)
    assert 1 - 1e-9 <= perplexity(weights) <= len(scores) + 1e-9


@given(st.floats(0.01, 0.99), st.integers(2, 1000))
def test_score_gap_gives_the_weight_back(weight, num_keys):
    scores = torch.zeros(num_keys, dtype=torch.float64)
    scores[0] = score_gap(weight, num_keys)
    assert math.isclose(softmax(scores)[0].item(), weight, rel_tol=1e-12)


def test_gradients():
    rng = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 4, generator=rng, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(softmax, scores)
    assert torch.autograd.gradcheck(lambda s: softmax(s, temperature=0.5), scores)
    assert torch.autograd.gradgradcheck(softmax, scores)
    assert torch.autograd.gradcheck(lambda s: softmax_jacobian(softmax(s)), scores)
    assert torch.autograd.gradcheck(lambda s: perplexity(softmax(s)), scores)
    key = torch.randn(2, 4, generator=rng, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(scaled_scores, (scores, key))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes(dtype):
    scores = torch.tensor([[1.0, 2.0, 3.0]], dtype=dtype)
    weights = softmax(scores, temperature=2.0)
    assert weights.dtype == softmax_jacobian(weights).dtype == dtype
    assert entropy(weights).dtype == perplexity(weights).dtype == dtype
    assert scaled_scores(scores, scores).dtype == fold_scale(scores, 4).dtype == dtype


def test_empty_axes():
    empty = torch.zeros(2, 0)
    assert softmax(empty).shape == (2, 0)
    assert softmax_jacobian(empty).shape == (2, 0, 0)
    assert entropy(empty).tolist() == [0.0, 0.0]
    assert softmax(torch.zeros(0, 3)).shape == (0, 3)
    assert scaled_scores(torch.zeros(0, 3), torch.zeros(2, 3)).shape == (0, 2)


def test_infinite_scores_are_as_in_torch():
    for row in ([0.0, -math.inf], [-math.inf] * 2, [math.inf, 0.0], [math.nan, 0.0]):
        scores = torch.tensor(row)
        expected = torch.softmax(scores, -1)
        torch.testing.assert_close(softmax(scores), expected, equal_nan=True)


def test_saturated_weights_have_no_derivatives():
    jacobian = softmax_jacobian(softmax(torch.tensor([40.0, 0.0, 1.0, 2.0], dtype=torch.float64)))
    assert jacobian.abs().max() < 1e-15


@pytest.mark.parametrize("d", [1, 2, 4])
def test_variance_of_a_product_of_signs_is_exactly_d(d):
    signs = [torch.tensor(v) for v in itertools.product([-1.0, 1.0], repeat=d)]
    scores = torch.stack([q @ k for q in signs for k in signs])
    assert scores.mean() == 0
    assert scores.var(correction=0) == d


def test_the_statistics_keep_their_promise():
    for d in (16, 256):
        unscaled, scaled = score_statistics(d, scale=1.0), score_statistics(d)
        assert abs(scaled.scores.var().item() - 1) < 0.05
        assert abs(unscaled.scores.var().item() / d - 1) < 0.05
        assert scaled.query_gradient.median() > 0.5
    assert unscaled.top_weight.median() > 0.99
    assert scaled.top_weight.median() < 0.35
    assert unscaled.query_gradient.median() < 0.2 * scaled.query_gradient.median()


def test_a_folded_scale_gives_the_same_attention():
    rng = torch.Generator().manual_seed(0)
    x, w_query, w_key, w_value = (
        torch.randn(*shape, generator=rng, dtype=torch.float64)
        for shape in ((5, 6), (6, 4), (6, 4), (6, 3))
    )
    usual = attention(x @ w_query, x @ w_key, x @ w_value)
    folded = attention(x @ fold_scale(w_query, 4), x @ w_key, x @ w_value, scale=1.0)
    torch.testing.assert_close(usual, folded)


MALFORMED = [
    (lambda: softmax([1.0, 2.0]), TypeError, "scores: expected a torch.Tensor, got list"),
    (lambda: softmax(torch.ones(2, dtype=torch.int64)), TypeError, "scores: .*floating point"),
    (lambda: softmax(torch.tensor(1.0)), ValueError, "scores: expected at least 1 axis"),
    (lambda: softmax(torch.ones(2), temperature=0), ValueError, "temperature: .*above 0, got 0"),
    (lambda: softmax(torch.ones(2), temperature=-1.0), ValueError, "temperature: .*got -1"),
    (lambda: softmax(torch.ones(2), temperature="hot"), TypeError, "temperature: .*got str"),
    (lambda: softmax(torch.ones(2), temperature=math.inf), ValueError, "temperature: .*finite"),
    (lambda: softmax_jacobian(np.ones(2)), TypeError, "weights: .*got ndarray"),
    (lambda: softmax_jacobian(torch.tensor(1.0)), ValueError, "weights: .*1 axis"),
    (lambda: entropy(torch.tensor([True])), TypeError, "weights: .*floating point"),
    (lambda: perplexity(None), TypeError, "weights: .*got NoneType"),
    (lambda: score_gap(1.0, 3), ValueError, "weight: .*above 0 and .*below 1, got 1.0"),
    (lambda: score_gap("half", 3), TypeError, "weight: .*got str"),
    (lambda: score_gap(0.5, 1), ValueError, "num_keys: expected at least 2, got 1"),
    (lambda: score_gap(0.5, 2.0), TypeError, "num_keys: expected an int, got float"),
    (lambda: fold_scale(torch.ones(2, 2), 0), ValueError, "d_head: expected at least 1, got 0"),
    (lambda: fold_scale([[1.0]], 1), TypeError, "weight: .*got list"),
    (lambda: scaled_scores(torch.ones(2), torch.ones(2, 2)), ValueError, "query: .*2 axes"),
    (lambda: scaled_scores(torch.ones(2, 0), torch.ones(2, 0)), ValueError, "query: .*d of at least 1"),
    (lambda: scaled_scores(torch.ones(2, 3), torch.ones(2, 4)), ValueError, r"key: .*\(S, 3\) as in q"),
    (lambda: scaled_scores(torch.ones(2, 3), torch.ones(3)), ValueError, "key: .*2 axes"),
    (lambda: scaled_scores(torch.ones(2, 3), torch.ones(2, 3).half()), TypeError, "key: .*dtype"),
    (lambda: scaled_scores(torch.ones(2, 3), [[1.0] * 3]), TypeError, "key: .*got list"),
    (lambda: scaled_scores(torch.ones(1, 3), torch.ones(1, 3), scale=math.inf), ValueError, "sca"),
    (lambda: score_statistics(0), ValueError, "d_head: expected at least 1, got 0"),
    (lambda: score_statistics(4, num_keys=2.5), TypeError, "num_keys: expected an int"),
]  # fmt: skip


@pytest.mark.plain_types
@pytest.mark.parametrize(("call", "kind", "words"), MALFORMED)
def test_malformed_calls(call, kind, words):
    with pytest.raises(kind, match=words):
        call()
