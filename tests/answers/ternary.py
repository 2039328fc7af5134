"""BitNet's linear layer: the package's, by an autograd function, by whole numbers."""

import torch
from torch.nn import functional

from answers import right, wrong
from tested_transformer.functional.ternary import bit_linear, pack_ternary, unpack_ternary


@right("bit_linear", "the package's")
def by_the_package(x, weight, *, bias=None):
    return bit_linear(x, weight, bias)


class Rounded(torch.autograd.Function):
    """As transformers writes it."""

    @staticmethod
    def forward(ctx, numbers, scale, least, most):
        return (numbers * scale).round().clamp(least, most) / scale

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None, None, None


@right("bit_linear", "by an autograd function")
def by_function(x, weight, *, bias=None):
    own = 1 / weight.abs().mean().clamp(min=1e-5)
    tokens = 127 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
    return functional.linear(
        Rounded.apply(x, tokens.detach(), -128, 127),
        Rounded.apply(weight, own.detach(), -1, 1),
        bias,
    )


@right("bit_linear", "by thresholds at half of the mean")
def by_thresholds(x, weight, *, bias=None):
    mean = weight.detach().abs().mean().clamp(min=1e-5)
    ternary = mean * ((weight > mean / 2).to(weight) - (weight < -mean / 2).to(weight))
    step = x.detach().abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
    whole = step * (x.detach() / step).round()
    return functional.linear(whole + x - x.detach(), ternary + weight - weight.detach(), bias)


@wrong("bit_linear", "weights of full precision")
def full_weights(x, weight, *, bias=None):
    return functional.linear(x, weight, bias)


@wrong("bit_linear", "the inputs are not quantized")
def full_inputs(x, weight, *, bias=None):
    mean = weight.detach().abs().mean().clamp(min=1e-5)
    ternary = (weight.detach() / mean).round().clamp(-1, 1) * mean
    return functional.linear(x, ternary + weight - weight.detach(), bias)


@wrong("bit_linear", "no gradient for weights beyond the scale, as in older binary networks")
def clipped_gradient(x, weight, *, bias=None):
    inside = (weight.detach().abs() <= weight.detach().abs().mean()).to(weight)
    return bit_linear(x, inside * weight + (1 - inside) * weight.detach(), bias)


right("pack_ternary", "the package's")(pack_ternary)


@right("pack_ternary", "as a number in base 4")
def in_base_four(values):
    digits = (values.long() + 1).unflatten(0, (4, -1))
    return (digits * torch.tensor([1, 4, 16, 64])[:, None, None]).sum(0).to(torch.uint8)


@wrong("pack_ternary", "all four parts in the same two bits")
def same_bits(values):
    parts = (values + 1).to(torch.uint8).chunk(4)
    return parts[0] | parts[1] | parts[2] | parts[3]


@wrong("pack_ternary", "unpacked again")
def unpacked(values):
    return unpack_ternary(pack_ternary(values)).to(torch.uint8)
