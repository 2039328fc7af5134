"""Kimi Delta Attention: a gated DeltaNet in which each feature of a key has a decay of its own."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from ..bounds import PositiveFloat, PositiveInt
from ..shapes import checked
from .gated_delta_net import GatedDeltaNet
from .multi_head import split_heads

__all__ = ["KimiDeltaAttention"]


class KimiDeltaAttention(GatedDeltaNet):
    """The gated delta rule with a decay per channel, as in Kimi Linear.

    It differs from `GatedDeltaNet` in two projections, which go through d_head features each: `decay` gives one
    number per head and feature, whose softplus is multiplied by -exp(log_rate) of the head, and `gate` is a sigmoid.

    Shapes: x (B, L, D), real (B, L), True for a token that is no padding -> (B, L, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Kimi Team 2025 (Kimi Linear); transformers, models/kimi_linear, KimiLinearDeltaAttention.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_heads: PositiveInt,
        d_head: PositiveInt,
        *,
        conv_width: PositiveInt = 4,
        norm_eps: PositiveFloat = 1e-6,
        chunk_size: PositiveInt = 64,
    ) -> None:
        super().__init__(
            d_model, num_heads, d_key=d_head, d_value=d_head, conv_width=conv_width,
            norm_eps=norm_eps, chunk_size=chunk_size,
        )  # fmt: skip
        d_inner = num_heads * d_head
        self.decay, self.gate = (
            nn.Sequential(
                nn.Linear(d_model, d_head, bias=False), nn.Linear(d_head, d_inner, bias=False)
            )
            for _ in range(2)
        )
        self.decay_bias = nn.Parameter(torch.ones(d_inner))

    def _log_decay(self, x: Tensor) -> Float[Tensor, "B H L d"]:
        """The logarithms of the decays, one for each row of the state."""
        rate = functional.softplus(self.decay(x).float() + self.decay_bias.float())
        return -self.log_rate.float().exp()[:, None, None] * split_heads(rate, self.num_heads)

    def _gate(self, x: Tensor) -> Float[Tensor, "B L C"]:
        """What the normalized heads are multiplied by."""
        return self.gate(x).sigmoid()
