"""What is special to the exercises of chapter 7."""

import itertools

import torch

from tested_transformer.exercises.ch07 import ON_TRIAL


def _mixes(norm, b, place):
    """Whether another token changes this one: by gradients, and for the cut, whose maximum has none,
    by another batch."""
    x = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    jacobian = torch.autograd.functional.jacobian(lambda t: norm(t)[b, place], x)
    jacobian[:, b, place] = 0
    louder = 9 * x
    louder[b, place] = x[b, place]
    moved = (norm(x)[b, place] - norm(louder)[b, place]).abs().max()
    return max(jacobian.abs().max(), moved) > 1e-12


def test_what_is_on_trial_mixes_or_not_as_it_says():
    for norm in ON_TRIAL:
        mixes = [_mixes(norm, b, place) for b, place in itertools.product(range(3), range(4))]
        assert any(mixes) != norm.alone, norm
    assert len({str(norm) for norm in ON_TRIAL}) == len(ON_TRIAL)
