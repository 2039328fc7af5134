"""Chunked cross-attention: a decoder layer that reads what was retrieved for the chunks so far."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..bounds import PositiveInt
from ..functional.retrieval import chunked_cross_attention
from ..shapes import checked
from .multi_head import concat_heads, head_size, split_heads

__all__ = ["ChunkedCrossAttention"]


class ChunkedCrossAttention(nn.Module):
    """Multi-head attention of each token to the neighbors of the newest complete chunk.

    Linear layers `query`, `key`, `value` and `output`, made in that order. Tokens that read nothing (the
    first chunk_size - 1, and those whose neighbors are all masked) get zeros, not the output layer's bias:
    the residual connection then leaves them as they are.

    Shapes: x (B, L, D), neighbors (B, N, R, D), N = L // chunk_size, mask (B, N, R), True where a token may be
        read -> (B, L, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Borgeaud et al. 2022 (RETRO).
    """

    @checked
    def __init__(
        self, d_model: PositiveInt, num_heads: PositiveInt, chunk_size: PositiveInt
    ) -> None:
        super().__init__()
        head_size(d_model, num_heads, None)
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.output = nn.Linear(d_model, d_model, bias=False)
        self.num_heads, self.chunk_size = num_heads, chunk_size

    @checked(like="self.query.weight", D="self.query.in_features")
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        neighbors: Float[Tensor, "B N R D"],
        *,
        mask: Bool[Tensor, "B N R"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Attend, head by head."""
        query = split_heads(self.query(x), self.num_heads)  # B H L d
        key, value = (
            layer(neighbors).unflatten(-1, (self.num_heads, -1)).movedim(3, 1)  # B H N R d
            for layer in (self.key, self.value)
        )
        return self.output(concat_heads(self._read(query, key, value, mask)))

    def _read(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
    ) -> Float[Tensor, "B H L d"]:
        """What the heads compute: `chunked_cross_attention`."""
        return chunked_cross_attention(query, key, value, chunk_size=self.chunk_size, mask=mask)
