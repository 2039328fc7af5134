"""The answers to the exercises on chapter 21's deeper pages."""

import torch
from torch.nn import functional

from tested_transformer.functional.coding_rate import coding_rate_gradient, ista_step
from tested_transformer.functional.composed_heads import compose_heads
from tested_transformer.functional.hyper_connections import hyper_connection
from tested_transformer.functional.splines import bspline_basis
from tested_transformer.functional.ternary import bit_linear

from . import right, wrong

right("ch21.bspline_basis", "the package's")(bspline_basis)
right("ch21.bit_linear", "the package's")(bit_linear)


@right("ch21.bit_linear", "step by step")
def step_by_step(x, weight):
    mean = weight.detach().abs().mean()
    ternary = (weight.detach() / mean).round().clamp(-1, 1) * mean
    step = x.detach().abs().amax(-1, keepdim=True) / 127
    inputs = (x.detach() / step).round() * step
    return (inputs + x - x.detach()) @ (ternary + weight - weight.detach()).T


@wrong("ch21.bit_linear", "no gradient for the inputs")
def inputs_detached(x, weight):
    return bit_linear(x.detach(), weight) + 0 * functional.linear(x, weight)


@wrong("ch21.bspline_basis", "a hat of the whole width")
def wide_hats(x, knots, degree):
    count = len(knots) - 1 - degree
    left, right_end = knots[:count], knots[degree + 1 :]
    middle = (left + right_end) / 2
    rising, falling = (
        (x[..., None] - left) / (middle - left),
        (right_end - x[..., None]) / (right_end - middle),
    )
    return torch.minimum(rising, falling).clamp(min=0)


right("ch21.coding_rate_gradient", "the package's")(coding_rate_gradient)


@wrong("ch21.coding_rate_gradient", "dot products of the bases in place of the tokens'")
def products_of_bases(x, bases, eps):
    y = x @ bases
    a = y.shape[-1] / (y.shape[-2] * eps**2)
    gram = bases.mT @ bases  # H d d, where y^T y is meant
    inverse = torch.linalg.inv(torch.eye(y.shape[-1], dtype=x.dtype) + a * gram)
    return (a * y @ inverse @ bases.mT).sum(0)


right("ch21.ista_step", "the package's")(ista_step)


@wrong("ch21.ista_step", "the step size on the threshold alone")
def long_step(codes, x, dictionary, *, step_size=0.1, sparsity=0.1):
    return torch.relu(codes + (x - codes @ dictionary.T) @ dictionary - step_size * sparsity)


right("ch21.compose_heads", "the package's")(compose_heads)


@wrong("ch21.compose_heads", "the scores in the place of the base")
def without_base(scores, base, *sides):
    return scores + compose_heads(scores, 0 * base, *sides)


right("ch21.hyper_connection", "the package's")(hyper_connection)


@wrong("ch21.hyper_connection", "the streams are read before and mixed after")
def read_after(streams, sublayer, alpha, beta):
    mixed = alpha[..., 1:].mT @ streams
    return mixed + beta[..., None] * sublayer((alpha[..., :1] * mixed).sum(-2))[..., None, :]
