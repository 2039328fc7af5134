"""What is special to the exercises of chapter 7."""

import torch

from tested_transformer.exercises.ch07 import ON_TRIAL


def test_what_is_on_trial_mixes_or_not_as_it_says():
    """By gradients, and for the cut, whose maximum has none, by another batch."""
    for norm in ON_TRIAL:
        x = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        jacobian = torch.autograd.functional.jacobian(lambda t: norm(t)[1, 2], x)  # noqa: B023
        jacobian[:, 1, 2] = 0
        louder = 9 * x
        louder[1, 2] = x[1, 2]
        moved = (norm(x)[1, 2] - norm(louder)[1, 2]).abs().max()
        assert (max(jacobian.abs().max(), moved) < 1e-12) == norm.alone
        assert str(norm) in {each.name for each in ON_TRIAL}
