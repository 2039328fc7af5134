"""Quantization of BitNet b1.58: ternary weights, activations of 8 bits, and a gradient that ignores both."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float, Int, Int8, UInt8
from torch import Tensor

from ..bounds import AtLeast, AtMost
from ..errors import argument_error, shape_of
from ..shapes import checked

__all__ = [
    "Quantized",
    "bit_linear",
    "pack_ternary",
    "quantize_activations",
    "quantize_ternary",
    "straight_through",
    "unpack_ternary",
]

LEAST = 1e-5  # below it a scale would divide by nearly nothing
PER_BYTE = 4


class Quantized(NamedTuple):
    """Whole numbers, and the scale that they are divided by: values / scale is near what was quantized."""

    values: Float[Tensor, "..."]
    scale: Float[Tensor, "..."]

    def dequantized(self) -> Float[Tensor, "..."]:
        """The numbers that the whole ones stand for."""
        return self.values / self.scale


@checked
def quantize_ternary(weight: Float[Tensor, "*shape"]) -> Quantized:
    """-1, 0 or 1 for each weight, and one scale for all: 1 / the mean of |w|.

    Shapes: any -> values of the same shape, scale (). In at least float32.
    Raises: TypeError or ValueError that name the argument.
    Source: Ma et al. 2024 (BitNet b1.58); transformers' WeightQuant.

    >>> import torch
    >>> quantize_ternary(torch.tensor([0.2, -0.9, 1.6, 0.5]))
    Quantized(values=tensor([ 0., -1.,  1.,  1.]), scale=tensor(1.2500))
    """
    weight = weight.to(torch.promote_types(weight.dtype, torch.float32))
    scale = 1 / weight.abs().mean().clamp(min=LEAST)
    return Quantized((weight * scale).round().clamp(-1, 1), scale)


@checked
def quantize_activations(x: Float[Tensor, "*batch D"]) -> Quantized:
    """Whole numbers from -127 to 127, and a scale for each token: 127 / its largest |x|.

    Shapes: (*batch, D) -> values (*batch, D), scale (*batch, 1). In at least float32.
    Raises: TypeError or ValueError that name the argument.
    Source: Ma et al. 2024 (BitNet b1.58); transformers' ActQuant.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = 127 / x.abs().amax(-1, keepdim=True).clamp(min=LEAST)
    return Quantized((x * scale).round().clamp(-128, 127), scale)


@checked
def straight_through(
    x: Float[Tensor, "*shape"], quantized: Float[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """The quantized numbers, with the gradient of x: as if rounding were the identity.

    x - x.detach() is exactly 0. x + (quantized - x).detach() has the same gradient, and rounds.

    Shapes: any.
    Raises: TypeError or ValueError that name the argument.
    Source: Bengio et al. 2013.
    """
    return quantized.detach() + (x - x.detach())


@checked
def bit_linear(
    x: Float[Tensor, "*batch D"],
    weight: Float[Tensor, "F D"],
    bias: Float[Tensor, " F"] | None = None,
) -> Float[Tensor, "*batch F"]:
    """A linear layer whose weights are ternary and whose inputs have 8 bits.

    Shapes: x (*batch, D), weight (F, D), bias (F) -> (*batch, F).
    Raises: TypeError or ValueError that name the argument.
    Source: Ma et al. 2024 (BitNet b1.58); transformers' AutoBitLinear with online_quant.
    """
    ternary = straight_through(weight, quantize_ternary(weight).dequantized().to(weight.dtype))
    inputs = straight_through(x, quantize_activations(x).dequantized().to(x.dtype))
    return torch.nn.functional.linear(inputs, ternary, bias)


@checked
def pack_ternary(
    values: Annotated[Int[Tensor, "F D"], AtLeast(-1), AtMost(1)],
) -> UInt8[Tensor, "f D"]:
    """Four ternary numbers in a byte, two bits each: rows i, i + f, i + 2 f and i + 3 f in row i.

    Shapes: (F, D) -> (F / 4, D).
    Raises: TypeError or ValueError that name the argument.
    Source: transformers' pack_weights.

    >>> import torch
    >>> pack_ternary(torch.tensor([[0], [-1], [1], [1]], dtype=torch.int8))  # 10 10 00 01
    tensor([[161]], dtype=torch.uint8)
    """
    if len(values) % PER_BYTE:
        wanted = f"a number of rows that {PER_BYTE} divides"
        raise argument_error(ValueError, "values", f"shape {shape_of(values)}", wanted)
    parts = (values + 1).to(torch.uint8).chunk(PER_BYTE)
    return sum(part << 2 * place for place, part in enumerate(parts))


@checked
def unpack_ternary(packed: UInt8[Tensor, "f D"]) -> Int8[Tensor, "F D"]:
    """What `pack_ternary` packed.

    Shapes: (F / 4, D) -> (F, D).
    Raises: TypeError or ValueError that name the argument.
    Source: transformers' unpack_weights.
    """
    if packed.dtype != torch.uint8:
        raise argument_error(TypeError, "packed", str(packed.dtype), "torch.uint8")
    parts = [(packed >> 2 * place) & 3 for place in range(PER_BYTE)]
    return torch.cat(parts).to(torch.int8) - 1
