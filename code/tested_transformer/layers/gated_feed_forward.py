"""The gated feed-forward network, with any activation for the gate."""

from __future__ import annotations

from typing import Any

from ..bounds import PositiveInt
from ..shapes import checked
from .feed_forward import FeedForward

__all__ = ["GatedFeedForward"]


class GatedFeedForward(FeedForward):
    """down_proj(activation(gate_proj(x)) x up_proj(x)): GEGLU with "gelu", ReGLU with "relu", and so on.

    Shapes: (*batch, D) -> (*batch, D), by way of (*batch, d_ff).
    Raises: TypeError or ValueError that name the argument.
    Source: Shazeer 2020, equation 6.
    """

    @checked
    def __init__(
        self, d_model: PositiveInt, d_ff: PositiveInt, *, bias: bool = True, **options: Any
    ) -> None:
        super().__init__(d_model, d_ff, bias=bias, **options)
        self.gate_proj = self.linear_map(d_model, d_ff, bias)
