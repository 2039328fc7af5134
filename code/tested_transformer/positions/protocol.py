"""The one protocol of all positional encodings: three places at which positions can enter a model."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor, nn

from ..shapes import checked

__all__ = ["PositionScheme"]


class PositionScheme(nn.Module):
    """How a model learns the order of its tokens; a scheme overrides what it does, the rest does nothing.

    `embed` acts once, on the token embeddings (sinusoidal, learned). `rotate` acts in every attention
    layer on queries and keys, after the split into heads and before keys enter a cache (rotary).
    `bias` is added to the scaled scores of every attention layer (ALiBi; relative, whose bias depends
    on the query too). A bias of -slope x distance is also given as `slopes`, which need no memory of
    size L x S.

    Position IDs are integers, (L) for all sequences of a batch or (B, L) for each its own.

    Source: chapter 6.
    """

    @checked
    def embed(
        self, x: Float[Tensor, "B L D"], position_ids: Int[Tensor, " L"] | Int[Tensor, "#B L"]
    ) -> Float[Tensor, "B L D"]:
        """The token embeddings, with their positions. Shapes: (B, L, D) -> (B, L, D)."""
        return x

    @checked
    def rotate(
        self,
        query: Float[Tensor, "B H L d"],
        key: Float[Tensor, "B G L d"],
        position_ids: Int[Tensor, " L"] | Int[Tensor, "#B L"],
    ) -> tuple[Float[Tensor, "B H L d"], Float[Tensor, "B G L d"]]:
        """Queries and keys of the new tokens, rotated. Shapes: as given."""
        return query, key

    @checked
    def bias(
        self,
        query_ids: Int[Tensor, " L"] | Int[Tensor, "#B L"],
        key_ids: Int[Tensor, " S"] | Int[Tensor, "#B S"],
        query: Float[Tensor, "B H L d"] | None = None,
    ) -> Float[Tensor, "B H L S"] | None:
        """What is added to the scaled scores, or None. Shapes: -> (B, H, L, S), B may be 1."""
        return None

    @checked
    def slopes(self, like: Tensor) -> Float[Tensor, " H"] | None:
        """The slopes of a bias -slope x distance, on the device of `like`, or None. Shapes: -> (H)."""
        return None
