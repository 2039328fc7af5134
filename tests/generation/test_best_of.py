"""The best of n: against all choices, at its ends, and against sampling."""

import pytest
import torch

from tested_transformer import reference
from tested_transformer.generation.best_of import best_of_n_mean

RNG = torch.Generator().manual_seed(0)
SCORES = torch.randn(3, 8, generator=RNG, dtype=torch.float64)
UTILITIES = torch.randn(3, 8, generator=RNG, dtype=torch.float64)


@pytest.mark.parametrize("n", range(1, 9))
def test_all_choices(n):
    expected = reference.best_of_n_mean(SCORES.numpy(), UTILITIES.numpy(), n)
    torch.testing.assert_close(best_of_n_mean(SCORES, UTILITIES, n), torch.from_numpy(expected))


def test_a_score_that_is_the_utility_gets_better_with_n():
    means = torch.stack([best_of_n_mean(UTILITIES, UTILITIES, n) for n in range(1, 9)])
    assert bool((means.diff(dim=0) >= 0).all())
    torch.testing.assert_close(means[0], UTILITIES.mean(-1))
    torch.testing.assert_close(means[-1], UTILITIES.amax(-1))


def test_samples_of_n_agree():
    """20,000 choices of three answers, within five standard errors."""
    chosen = torch.rand(20000, 8, generator=RNG).argsort(-1)[:, :3]
    best = SCORES[0][chosen].argmax(-1, keepdim=True)
    found = UTILITIES[0][chosen].gather(-1, best)
    error = float(found.std()) / 20000**0.5
    assert abs(float(found.mean()) - float(best_of_n_mean(SCORES, UTILITIES, 3)[0])) < 5 * error


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="n: expected at most"):
        best_of_n_mean(SCORES, UTILITIES, 9)
    with pytest.raises(ValueError, match="n: expected at least 1"):
        best_of_n_mean(SCORES, UTILITIES, 0)
    with pytest.raises(ValueError, match="utilities: expected"):
        best_of_n_mean(SCORES, UTILITIES[:, :7], 2)
