"""Attention and the feed-forward network side by side: both read the same input, and their outputs are added."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from ..bounds import Probability
from ..shapes import checked

__all__ = ["ParallelLayer"]


class ParallelLayer(nn.Module):
    """x + attention(norm(x)) + feed_forward(norm(x)), where an ordinary layer has one after the other.

    The large matrix products of the two can be computed at once. feed_forward_norm: a norm of its own for
    the feed-forward network; without one both read the same normalized input. Dropout acts on the sum.

    Shapes: x (B, L, D) -> (B, L, D), and the attention weights (B, H, L, S) with return_weights.
    Source: Wang and Komatsuzaki 2021 (GPT-J); Almazrouei et al. 2023 (Falcon).
    """

    @checked
    def __init__(
        self,
        attention: nn.Module,
        feed_forward: nn.Module,
        norm: nn.Module,
        feed_forward_norm: nn.Module | None = None,
        *,
        dropout: Probability = 0.0,
    ) -> None:
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward
        shared = feed_forward_norm is None
        self.shared_norm = norm if shared else None
        self.attention_norm = None if shared else norm
        self.feed_forward_norm = feed_forward_norm
        self.dropout = nn.Dropout(dropout)

    @checked
    def forward(
        self, x: Float[Tensor, "B L D"], *, return_weights: bool = False, **options: Any
    ) -> Float[Tensor, "B L D"] | tuple[Float[Tensor, "B L D"], Float[Tensor, "B H L S"]]:
        """One layer; options: those of the attention, mask, causal and cache among them."""
        if self.shared_norm is not None:
            own = other = self.shared_norm(x)  # B L D
        else:
            own, other = self.attention_norm(x), self.feed_forward_norm(x)  # B L D
        answer = self.attention(own, return_weights=return_weights, **options)
        output, *weights = answer if return_weights else (answer,)
        x = x + self.dropout(output + self.feed_forward(other))
        return (x, *weights) if return_weights else x
