"""Linear layers of BitNet b1.58: one that trains, and one that keeps two bits per weight."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..functional.ternary import (
    bit_linear,
    pack_ternary,
    quantize_activations,
    quantize_ternary,
    unpack_ternary,
)
from ..shapes import checked

__all__ = ["BitLinear", "PackedBitLinear"]


class BitLinear(nn.Linear):
    """A linear layer that quantizes its weights and inputs at each call, and trains the full weights.

    Shapes: (*batch, D) -> (*batch, F).
    Raises: TypeError or ValueError that name the argument.
    Source: Ma et al. 2024 (BitNet b1.58); transformers' AutoBitLinear with online_quant.
    """

    @checked(like="self.weight", D="self.in_features")
    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch F"]:
        """See `bit_linear`."""
        return bit_linear(x, self.weight, self.bias)

    def packed(self) -> PackedBitLinear:
        """The same layer for inference, with a quarter of a byte per weight."""
        return PackedBitLinear(self)


class PackedBitLinear(nn.Module):
    """A trained `BitLinear` with four ternary weights in each byte and one scale. It has no gradient.

    Whole numbers are multiplied and summed; the two scales divide at the end. On a CPU the product itself
    runs in floating point: the memory is saved, not the time.

    Shapes: (*batch, D) -> (*batch, F); F is a multiple of 4.
    Raises: TypeError or ValueError that name the argument.
    Source: transformers' integrations.bitnet, BitLinear.
    """

    @checked
    def __init__(self, layer: BitLinear) -> None:
        super().__init__()
        values, scale = quantize_ternary(layer.weight.detach())
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.register_buffer("weight", pack_ternary(values.to(torch.int8)))
        self.register_buffer("weight_scale", scale.to(layer.weight.dtype))
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().clone())

    @torch.no_grad()
    @checked(like="self.weight_scale", D="self.in_features")
    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch F"]:
        """Unpack, multiply whole numbers, divide by both scales."""
        values, scale = quantize_activations(x)
        sums = nn.functional.linear(values, unpack_ternary(self.weight).to(values))  # *batch F
        output = (sums / (scale * self.weight_scale.to(scale))).to(x.dtype)
        return output if self.bias is None else output + self.bias
