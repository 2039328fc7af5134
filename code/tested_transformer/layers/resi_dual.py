"""ResiDual: post-norm, and beside it a second stream that is never normalized."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..bounds import Probability
from ..errors import argument_error, shape_of
from ..shapes import checked
from .residual import Residual, check_output
from .stack import Stack

__all__ = ["ResiDual", "ResiDualStack"]


class ResiDual(Residual):
    """A residual connection with two streams: post-norm, and the sum of all sublayer outputs.

    The streams lie side by side in the last axis, (x, total), so that no layer has to know of the second:
    x = norm(x + f(x)), total = total + f(x).

    Shapes: x (*batch, 2 D); sublayer: a function (*batch, D) -> (*batch, D). Returns (*batch, 2 D).
    Raises: TypeError or ValueError that name the argument.
    Source: Xie et al. 2023, ResiDual, section 2.3.
    """

    @checked
    def __init__(self, norm: nn.Module, *, dropout: Probability = 0.0) -> None:
        super().__init__(norm, dropout=dropout)

    @checked
    def inputs(self, x: Float[Tensor, "*batch two_D"]) -> Float[Tensor, "*batch D"]:
        """The normalized stream."""
        return split_streams(x)[0].contiguous()

    @checked(like="x")
    def add(
        self, x: Float[Tensor, "*batch two_D"], output: Float[Tensor, "*batch D"]
    ) -> Float[Tensor, "*batch two_D"]:
        """Both streams with the sublayer's output added, the same after dropout."""
        x, total = split_streams(x)
        check_output("output", output, x)
        change = self.dropout(output)
        return torch.cat([self.norm(x + change), total + change], dim=-1)


class ResiDualStack(Stack):
    """A stack of layers that are wired by `ResiDual`: both streams start as x, and meet at the end.

    Shapes, Raises: as `Stack`.
    Source: Xie et al. 2023, ResiDual, section 2.3.
    """

    @checked(like="x")
    def forward(
        self,
        x: Float[Tensor, "*batch D"],
        *inputs: Float[Tensor, "..."],
        norm: nn.Module,
        **options: Any,
    ) -> tuple[Float[Tensor, "*batch D"], list[list[Tensor]]]:
        """Every layer in turn, then x + norm(total)."""
        streams, weights = super().forward(torch.cat([x, x], dim=-1), *inputs, **options)
        x, total = split_streams(streams)
        return x + norm(total.contiguous()), weights  # a view would keep both streams for backward


def split_streams(x: Tensor) -> tuple[Tensor, Tensor]:
    """The two streams of a tensor (*batch, 2 D)."""
    if x.ndim == 0 or x.shape[-1] % 2:
        wanted = "two streams side by side, (*batch, 2 D)"
        raise argument_error(ValueError, "x", f"shape {shape_of(x)}", wanted)
    x, total = x.chunk(2, dim=-1)
    return x, total
