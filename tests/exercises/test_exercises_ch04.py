"""What is special to the exercises of chapter 4."""

import torch

from tested_transformer.exercises.ch04 import ON_TRIAL


def test_what_is_on_trial_leaks_or_not_as_it_says():
    """By gradients: does an output depend on a later token?"""
    for attention in ON_TRIAL:
        x = torch.randn(8, 3, dtype=torch.float64)
        jacobian = torch.autograd.functional.jacobian(lambda t: attention(t, t, t).sum(-1), x)  # noqa: B023
        future = jacobian.sum(-1).triu(1)
        assert (bool(future.isnan().any()) or bool(future.abs().max() > 1e-12)) == attention.leaks
        assert str(attention) in {each.name for each in ON_TRIAL}
