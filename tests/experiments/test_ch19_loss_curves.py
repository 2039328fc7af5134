"""Chapter 19: what loss curves show of a wrong division, and what they do not, as the page says."""

import math

import pytest
import torch

from tested_transformer.experiments import ch19_workers as workers

PARTS = [workers.RAGGED[2 * rank : 2 * rank + 2] for rank in range(4)]


def mean_of_means(model):
    return sum(workers.mean_loss(model, part) for part in PARTS) / 4


OBJECTIVES = {  # one process imitates four: the sum of gradients is the gradient of the sum
    "A": lambda model: 4 * mean_of_means(model),
    "B": mean_of_means,
    "C": lambda model: workers.mean_loss(model, workers.RAGGED),
}


def curve(optimizer, lr, version, steps):
    """The mean loss of the global batch before each step and after the last one."""
    model, losses = workers.new_model(), []
    update = optimizer(model.parameters(), lr=lr)
    for _ in range(steps):
        losses.append(workers.mean_loss(model, workers.RAGGED).item())
        update.zero_grad()
        OBJECTIVES[version](model).backward()
        update.step()
    return [*losses, workers.mean_loss(model, workers.RAGGED).item()]


@pytest.mark.parametrize(("optimizer", "lr"), [(torch.optim.AdamW, 0.01), (torch.optim.SGD, 0.1)])
def test_the_loss_of_version_b_falls_in_every_step_as_that_of_c_does(optimizer, lr):
    for version in "BC":
        losses = curve(optimizer, lr, version, 10)
        assert losses == sorted(losses, reverse=True)
        assert 3.95 < losses[0] < 4.05
        assert losses[-1] < 2.7


def test_adamw_cancels_the_factor_of_version_a():
    losses = {version: curve(torch.optim.AdamW, 0.01, version, 10) for version in "ABC"}
    assert losses["A"] == pytest.approx(losses["B"], rel=1e-4)
    assert losses["A"][-1] > 1.1 * losses["C"][-1]  # the wrong direction stays


def test_sgd_with_version_a_has_a_learning_rate_four_times_as_large():
    diverged = curve(torch.optim.SGD, 0.5, "A", 10)
    assert math.isnan(diverged[-1]) or diverged[-1] > 100
    for version in "BC":
        assert curve(torch.optim.SGD, 0.5, version, 10)[-1] < 2.7
