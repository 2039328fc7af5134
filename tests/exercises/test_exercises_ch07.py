"""The exercises of chapter 7: a right answer passes, the usual mistakes are named."""

import torch
from torch.nn import functional

from tested_transformer.exercises.ch07 import ON_TRIAL


def layer_norm(x, weight, bias, *, eps=1e-5):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    mean, variance = wide.mean(-1, keepdim=True), wide.var(-1, correction=0, keepdim=True)
    return ((wide - mean) / (variance + eps).sqrt() * weight + bias).to(x.dtype)


def layer_norm_gradient(x, gradient):
    std = x.std(-1, correction=0, keepdim=True)
    y = (x - x.mean(-1, keepdim=True)) / std
    shift, stretch = gradient.mean(-1, keepdim=True), (gradient * y).mean(-1, keepdim=True)
    return (gradient - shift - y * stretch) / std


def pre_stack(x, w, gain):
    for matrix, g in zip(w, gain[:-1], strict=True):
        x = x + torch.tanh(functional.layer_norm(x, g.shape, g) @ matrix)
    return functional.layer_norm(x, gain[-1].shape, gain[-1])


def fold_norm(weight, bias, matrix, offset):
    return matrix * weight, offset + matrix @ bias


def is_per_token(norm):
    x = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for b in range(3):
        for place in range(4):
            moved = 5 * x.flip(0, 1) + torch.arange(5)
            moved[b, place] = x[b, place]
            if not torch.allclose(norm(x)[b, place], norm(moved)[b, place], atol=1e-12):
                return False
    return True


SOLUTIONS = {
    "ch07.layer_norm": layer_norm,
    "ch07.layer_norm_gradient": layer_norm_gradient,
    "ch07.pre_stack": pre_stack,
    "ch07.fold_norm": fold_norm,
    "ch07.is_per_token": is_per_token,
}


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
