"""Scores from comparisons: equal to torch and scikit-learn, and to a closed form."""

import math

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn import functional

from tested_transformer.experiments.ch22_browser import train_score
from tested_transformer.training.preferences import bradley_terry_loss

RNG = torch.Generator().manual_seed(0)


def test_equal_to_binary_cross_entropy_in_values_and_gradients():
    first, second = torch.randn(2, 30, generator=RNG, dtype=torch.float64)
    preference = torch.randint(3, (30,), generator=RNG).double() / 2
    grads = []
    for loss in (
        lambda a, b: bradley_terry_loss(a, b, preference),
        lambda a, b: functional.binary_cross_entropy_with_logits(a - b, preference),
    ):
        a, b = first.clone().requires_grad_(), second.clone().requires_grad_()
        value = loss(a, b)
        value.backward()
        grads.append((value.detach(), a.grad, b.grad))
    torch.testing.assert_close(*grads)


def test_two_answers_have_a_closed_form():
    """One wins 3 of 4 comparisons: at the minimum its score is ln 3 higher."""
    first, second = torch.tensor([[1.0]] * 4), torch.tensor([[0.0]] * 4)
    won = torch.tensor([1.0, 1.0, 1.0, 0.0])
    margin = torch.tensor(math.log(3), requires_grad=True)
    bradley_terry_loss(margin.expand(4), torch.zeros(4), won).backward()
    assert abs(float(margin.grad)) < 4 * torch.finfo().eps
    weights = train_score(first, second, won, decay=0.0)
    assert float(weights) == pytest.approx(math.log(3), rel=1e-4)  # a gradient of 1e-5 ends LBFGS


def test_a_linear_score_is_logistic_regression_of_differences():
    """scikit-learn minimizes the sum, C its weight: decay is 1 / (C x comparisons)."""
    first, second = torch.randn(2, 200, 3, generator=RNG, dtype=torch.float64)
    truth = torch.tensor([2.0, -1.0, 0.5]).double()
    won = torch.rand(200, generator=RNG).double() < ((first - second) @ truth).sigmoid()
    found = train_score(first, second, won.double(), decay=1e-3)
    model = LogisticRegression(fit_intercept=False, C=1 / (1e-3 * 200), tol=1e-10, max_iter=1000)
    model.fit((first - second).numpy(), won.numpy())
    torch.testing.assert_close(found, torch.from_numpy(model.coef_[0]), rtol=1e-3, atol=1e-3)
    assert float((found - truth).abs().max()) < 1.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_large_scores_stay_finite(dtype):
    first = torch.tensor([-300.0, 300.0], dtype=dtype, requires_grad=True)
    loss = bradley_terry_loss(first, torch.zeros(2, dtype=dtype))
    loss.backward()
    assert loss.dtype == torch.float32
    assert float(loss) == 150.0
    assert first.grad.tolist() == [-0.5, 0.0]


@pytest.mark.plain_types
def test_bad_input_is_refused():
    three = torch.zeros(3)
    with pytest.raises(ValueError, match="second: expected"):
        bradley_terry_loss(three, torch.zeros(2))
    with pytest.raises(ValueError, match="first: expected"):
        bradley_terry_loss(torch.zeros(3, 2), torch.zeros(3, 2))  # two logits for an answer
    with pytest.raises(ValueError, match="preference: expected at least 0 and at most 1"):
        bradley_terry_loss(three, three, three + 2)
    with pytest.raises(ValueError, match="first: expected"):
        bradley_terry_loss(torch.zeros(0), torch.zeros(0))
