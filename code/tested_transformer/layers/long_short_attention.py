"""Long-short range attention: half of the channels through attention, half through a convolution."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from ..bounds import Below, NonNegativeInt, PositiveInt
from ..mixers.dynamic_convolution import dynamic_convolution
from ..shapes import checked
from .multi_head import MultiHeadAttention

__all__ = ["ConvolutionBranch", "LongShortAttention"]


class ConvolutionBranch(nn.Module):
    """A gated linear layer, a dynamic convolution, and a linear layer: what replaces attention nearby.

    Linear layers `value_and_gate`, `kernel` and `output`, made in that order. `kernel` computes each token's
    weights, one per head and neighbor.

    Shapes: x (B, L, D), key_mask (B, L), True for a token that is no padding -> (B, L, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Wu et al. 2020 (Lite Transformer); mit-han-lab/lite-transformer,
        configs/wmt14.en-fr/attention/multibranch_v2/embed496.yml.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_heads: PositiveInt,
        *,
        kernel_size: PositiveInt = 3,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.value_and_gate = nn.Linear(d_model, 2 * d_model, bias=bias)
        self.kernel = nn.Linear(d_model, num_heads * kernel_size, bias=bias)
        self.output = nn.Linear(d_model, d_model, bias=bias)
        self.num_heads = num_heads

    @checked(like="self.output.weight", D="self.output.in_features")
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        *,
        causal: bool = False,
        key_mask: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Mix each token with its neighbors."""
        x = functional.glu(self.value_and_gate(x))  # B L D
        logits = self.kernel(x).unflatten(-1, (self.num_heads, -1))  # B L H K
        return self.output(dynamic_convolution(x, logits, causal=causal, key_mask=key_mask))


class LongShortAttention(nn.Module):
    """Attention over all tokens on some channels, a convolution over neighbors on the others.

    `long`, a `MultiHeadAttention`, takes the first channels; `short`, a `ConvolutionBranch`, the last d_short.
    Neither reads the other's channels: the feed-forward network that follows mixes them. Without channels for
    the convolution it is multi-head attention.

    d_short: D / 2 by default. num_heads: of each branch.

    Shapes: x (B, L, D), key_mask (B, L), True for a token that is no padding -> (B, L, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Wu et al. 2020 (Lite Transformer); mit-han-lab/lite-transformer, fairseq/modules/multibranch.py.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_heads: PositiveInt,
        *,
        d_short: Annotated[NonNegativeInt, Below("d_model")] | None = None,
        kernel_size: PositiveInt = 3,
        bias: bool = True,
    ) -> None:
        super().__init__()
        d_short = d_model // 2 if d_short is None else d_short
        self.long = MultiHeadAttention(d_model - d_short, num_heads, bias=bias)
        self.short = None
        if d_short:
            self.short = ConvolutionBranch(d_short, num_heads, kernel_size=kernel_size, bias=bias)
        self.d_model, self.d_short = d_model, d_short

    @checked(like="self.long.query.weight", D="self.d_model")
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        *,
        causal: bool = False,
        key_mask: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Both branches, side by side."""
        long, short = x.split((self.d_model - self.d_short, self.d_short), -1)
        mask = None if key_mask is None else key_mask[:, None, None]
        long = self.long(long, mask=mask, causal=causal)
        if self.short is None:
            return long
        return torch.cat((long, self.short(short, causal=causal, key_mask=key_mask)), -1)
