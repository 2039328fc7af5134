"""Multi-head attention by content and by distance, over a segment and the memory before it."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..bounds import PositiveInt, Probability
from ..functional.attention import Backend
from ..functional.relative_shift import transformer_xl_attention
from ..positions.sinusoidal import sinusoidal_positions
from ..shapes import checked
from .multi_head import MultiHeadAttention
from .segment_memory import SegmentMemory

__all__ = ["TransformerXLAttention", "distance_encodings"]


@checked
def distance_encodings(
    num_queries: PositiveInt,
    num_keys: PositiveInt,
    d_model: PositiveInt,
    like: Float[Tensor, "..."],
) -> Float[Tensor, "R D"]:
    """Sinusoids of every distance between a query and a key, the largest first: S - 1 to -(L - 1).

    All sines come before all cosines. like: a tensor of the dtype and on the device to make them in.

    Shapes: numbers -> (S + L - 1, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Dai et al. 2019 (Transformer-XL), section 3.3.
    """
    distances = torch.arange(num_keys - 1, -num_queries, -1, device=like.device)  # R
    return sinusoidal_positions(distances, d_model, layout="halves", dtype=like.dtype)


class TransformerXLAttention(MultiHeadAttention):
    """Self-attention of a segment to itself and to a memory, with `transformer_xl_attention`.

    Besides the linear layers of `MultiHeadAttention` there are `position`, which makes the keys of the
    distances from `distance_encodings`, and the parameters `content_bias` (u) and `position_bias` (v), zero
    at first. Distances of both directions are encoded, so that a mask of any form may be given.

    Shapes: x (B, L, D) -> (B, L, D), and the attention weights (B, H, L, S), after dropout, with
        return_weights; S counts the memory and the segment.
    Raises: TypeError or ValueError that name the argument.
    Source: Dai et al. 2019 (Transformer-XL), sections 3.2 and 3.3.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_heads: PositiveInt,
        *,
        d_head: PositiveInt | None = None,
        bias: bool = False,
        dropout: Probability = 0.0,
        window: PositiveInt | None = None,
        backend: Backend = "auto",
    ) -> None:
        super().__init__(
            d_model, num_heads, d_head=d_head, bias=bias, dropout=dropout, window=window,
            backend=backend,
        )  # fmt: skip
        self.position = nn.Linear(d_model, num_heads * self.d_head, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(num_heads, self.d_head))
        self.position_bias = nn.Parameter(torch.zeros(num_heads, self.d_head))

    @checked(like="self.query.weight", D="self.query.in_features")
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        *,
        mask: Bool[Tensor, "#L #T"] | Bool[Tensor, "#B #H #L #T"] | None = None,
        causal: bool = False,
        position_ids: Int[Tensor, " L"] | Int[Tensor, "#B L"] | None = None,
        cache: SegmentMemory | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L D"] | tuple[Float[Tensor, "B L D"], Float[Tensor, "B H L S"]]:
        """Attend, head by head, to the memory in the cache and to x, which is remembered afterwards.

        position_ids change nothing: distances count along the sequence, as in `MultiHeadAttention`.
        """
        context = x if cache is None else cache.append(x)  # B S D
        return super().forward(
            x, context, mask=mask, causal=causal, return_weights=return_weights
        )  # fmt: skip

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        """What the heads compute: `transformer_xl_attention`, with its options."""
        encodings = distance_encodings(
            query.shape[2], key.shape[2], self.position.in_features, like=query
        )  # R D
        position_key = self.position(encodings).unflatten(-1, (self.num_heads, -1))  # R H d
        return transformer_xl_attention(
            query, key, value, position_key.transpose(0, 1), self.content_bias, self.position_bias,
            **options,
        )  # fmt: skip
