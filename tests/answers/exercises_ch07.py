"""The answers to the exercises of chapter 7; pre_stack stands with the block."""

import torch
from torch import nn
from torch.nn import functional

from . import right, wrong

# --- The backward pass of LayerNorm ---------------------------------------------------------------


@right("ch07.layer_norm_gradient")
def by_autograd(x, gradient):
    x = x.detach().requires_grad_()
    y = (x - x.mean(-1, keepdim=True)) / x.var(-1, correction=0, keepdim=True).sqrt()
    return torch.autograd.grad(y, x, gradient)[0]


@right("ch07.layer_norm_gradient")
def one_fraction(x, gradient):
    """The form with one division, as kernels have it."""
    d = x.shape[-1]
    rstd = x.var(-1, correction=0, keepdim=True).rsqrt()
    y = (x - x.mean(-1, keepdim=True)) * rstd
    total = gradient.sum(-1, keepdim=True) + y * (gradient * y).sum(-1, keepdim=True)
    return rstd / d * (d * gradient - total)


@right("ch07.layer_norm_gradient")
def by_jacobian(x, gradient):
    d = x.shape[-1]
    std = x.std(-1, correction=0, keepdim=True)
    y = (x - x.mean(-1, keepdim=True)) / std
    jacobian = torch.eye(d, dtype=x.dtype) - 1 / d - y[..., :, None] * y[..., None, :] / d
    return (jacobian @ gradient[..., None])[..., 0] / std


@right("ch07.layer_norm_gradient")
def two_projections(x, gradient):
    """Without its mean, and without its part along the centered x."""
    centered = x - x.mean(-1, keepdim=True)
    rest = gradient - gradient.mean(-1, keepdim=True)
    along = (rest * centered).sum(-1, keepdim=True) / centered.square().sum(-1, keepdim=True)
    return (rest - along * centered) / centered.square().mean(-1, keepdim=True).sqrt()


@wrong("ch07.layer_norm_gradient", "the variance is divided by D - 1")
def unbiased(x, gradient):
    std = x.std(-1, keepdim=True)
    y = (x - x.mean(-1, keepdim=True)) / std
    shift, stretch = gradient.mean(-1, keepdim=True), (gradient * y).mean(-1, keepdim=True)
    return (gradient - shift - y * stretch) / std


@wrong("ch07.layer_norm_gradient", "an eps of 1e-5")
def with_eps(x, gradient):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(functional.layer_norm(x, x.shape[-1:]), x, gradient)[0]


@wrong("ch07.layer_norm_gradient", "no division by the std")
def not_divided(x, gradient):
    return one_fraction(x, gradient) * x.std(-1, correction=0, keepdim=True)


@wrong("ch07.layer_norm_gradient", "statistics over all tokens of a sample")
def over_tokens(x, gradient):
    if x.ndim < 3:
        return one_fraction(x, gradient)
    return one_fraction(x.flatten(1), gradient.flatten(1)).view_as(x)


@wrong("ch07.layer_norm_gradient", "float32 throughout")
def in_float32(x, gradient):
    return one_fraction(x.float(), gradient.float()).to(x.dtype)


# --- A norm that disappears -----------------------------------------------------------------------


@right("ch07.fold_norm")
def by_diagonal(weight, bias, matrix, offset):
    return matrix @ torch.diag(weight), torch.addmv(offset, matrix, bias)


@right("ch07.fold_norm")
def row_by_row(weight, bias, matrix, offset):
    rows = [row * weight for row in matrix]
    shifts = [constant + torch.dot(row, bias) for row, constant in zip(matrix, offset, strict=True)]
    return torch.stack(rows), torch.stack(shifts)


@right("ch07.fold_norm")
def by_einsum(weight, bias, matrix, offset):
    folded = torch.einsum("ed,d->ed", matrix, weight)
    return folded, (matrix * bias).sum(-1) + offset


@wrong("ch07.fold_norm", "the offset is scaled as well")
def offset_scaled(weight, bias, matrix, offset):
    return matrix * weight, offset * weight.mean() + matrix @ bias


@wrong("ch07.fold_norm", "the bias is subtracted")
def bias_subtracted(weight, bias, matrix, offset):
    return matrix * weight, offset - matrix @ bias


@wrong("ch07.fold_norm", "the weight's size alone")
def without_signs(weight, bias, matrix, offset):
    return matrix * weight.abs(), offset + matrix @ bias


@wrong("ch07.fold_norm", "the weight is detached")
def weight_detached(weight, bias, matrix, offset):
    return matrix * weight.detach(), offset + matrix @ bias


@wrong("ch07.fold_norm", "the caller's matrix is scaled in place")
def in_place(weight, bias, matrix, offset):
    shifted = offset + matrix @ bias
    return matrix.mul_(weight), shifted


# --- A test for leaks between tokens --------------------------------------------------------------


def some_tokens(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@right("ch07.is_per_token")
def token_by_token(norm):
    """Each token in a batch of its own."""
    x = 3 * some_tokens(3, 4, 5)
    apart = [[norm(token[None, None])[0, 0] for token in sample] for sample in x]
    return torch.allclose(norm(x), torch.stack([torch.stack(row) for row in apart]), atol=1e-9)


@right("ch07.is_per_token")
def one_changed_at_a_time(norm):
    x = some_tokens(3, 6, 5)
    before = norm(x)
    for b in range(3):
        for token in range(6):
            changed = x.clone()
            changed[b, token] = 100 * changed[b, token].flip(-1) + 3
            others = torch.ones(3, 6, dtype=torch.bool)
            others[b, token] = False
            if not torch.allclose(before[others], norm(changed)[others], atol=1e-9):
                return False
    return True


@right("ch07.is_per_token")
def by_gradients(norm):
    """No output has a gradient by another token, and sizes far apart change none of the others."""
    x = some_tokens(2, 3, 4)
    jacobian = torch.autograd.functional.jacobian(norm, x).abs().sum((2, 5))
    apart = jacobian.flatten(0, 1).flatten(1, 2) * (1 - torch.eye(6, dtype=x.dtype))
    larger = x.clone()
    larger[-1, -1] *= 100
    same = torch.allclose(norm(x).flatten(0, 1)[:-1], norm(larger).flatten(0, 1)[:-1], atol=1e-9)
    return bool((apart < 1e-9).all()) and same


@wrong("ch07.is_per_token", "only the token before is changed")
def one_neighbor(norm):
    """A leak from later tokens is missed."""
    x = some_tokens(3, 4, 5)
    changed = x.clone()
    changed[:, 0] = 9 * changed[:, 0] + 1
    return torch.allclose(norm(x)[:, 1:], norm(changed)[:, 1:], atol=1e-9)


@wrong("ch07.is_per_token", "only the token after is changed")
def later_only(norm):
    x = some_tokens(3, 4, 5)
    changed = x.clone()
    changed[:, -1] = 9 * changed[:, -1] + 1
    return torch.allclose(norm(x)[:, :-1], norm(changed)[:, :-1], atol=1e-9)


@wrong("ch07.is_per_token", "only the last sample is changed")
def last_sample(norm):
    x = some_tokens(3, 4, 5)
    changed = x.clone()
    changed[-1] = 9 * changed[-1] + 1
    return torch.allclose(norm(x)[:-1], norm(changed)[:-1], atol=1e-9)


@wrong("ch07.is_per_token", "neighbors alone: the last token into the first is missed")
def neighbors(norm):
    x = some_tokens(2, 4, 5)
    before = norm(x)
    for token in range(4):
        changed = x.clone()
        changed[0, token] = 9 * changed[0, token] + 1
        near = [n for n in (token - 1, token + 1) if 0 <= n < 4]
        if not torch.allclose(before[0, near], norm(changed)[0, near], atol=1e-9):
            return False
        if not torch.allclose(before[1, token], norm(changed)[1, token], atol=1e-9):
            return False
    return True


@wrong("ch07.is_per_token", "the answer's mean and variance are looked at")
def by_statistics(norm):
    y = norm(some_tokens(3, 4, 5))
    return torch.allclose(y.mean(-1), torch.zeros_like(y[..., 0]), atol=1e-6)


@wrong("ch07.is_per_token", "the name of the module is asked")
def by_type(norm):
    return not isinstance(norm, nn.BatchNorm1d)
