"""Relative positions: an embedding for each distance between query and key."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..bounds import Device, NonNegativeInt, PositiveInt, Probability
from ..errors import argument_error, shape_of
from ..functional.attention import attention
from ..shapes import checked
from .protocol import PositionScheme

__all__ = ["RelativeAttention", "RelativePositions", "relative_attention", "relative_distances"]


@checked
def relative_distances(
    num_queries: NonNegativeInt,
    num_keys: NonNegativeInt,
    max_distance: NonNegativeInt,
    *,
    device: Device | None = None,
) -> Int[Tensor, "L S"]:
    """The row of an embedding matrix that belongs to each pair: key position - query position, clipped.

    Entry (i, j) is clip(j - p, -K, K) + K, where p = i + S - L is the query's position (the last query
    is at the last key) and K is max_distance.

    Shapes: numbers -> (L, S), entries 0 ... 2K.
    Raises: TypeError or ValueError that name the argument.
    Source: Shaw et al. 2018, section 3.2.

    >>> relative_distances(3, 3, 1)
    tensor([[1, 2, 2],
            [0, 1, 2],
            [0, 0, 1]])
    """
    query_ids = torch.arange(num_queries, device=device) + num_keys - num_queries
    return clipped_distances(query_ids, torch.arange(num_keys, device=device), max_distance)


def clipped_distances(
    query_ids: Int[Tensor, "... L"], key_ids: Int[Tensor, "... S"], max_distance: int
) -> Int[Tensor, "... L S"]:
    """clip(key position - query position, -K, K) + K. Shapes: (*ids, L), (*ids, S) -> (*ids, L, S)."""
    distances = key_ids.unsqueeze(-2) - query_ids.unsqueeze(-1)
    return distances.clamp(-max_distance, max_distance) + max_distance


@checked
def relative_attention(
    query: Float[Tensor, "*batch L d"],
    key: Float[Tensor, "*kv_batch S d"],
    value: Float[Tensor, "*kv_batch S dv"],
    key_table: Float[Tensor, "rows d"],
    value_table: Float[Tensor, "rows dv"] | None = None,
    *,
    mask: Bool[Tensor, "..."] | None = None,
    causal: bool = False,
    dropout_p: Probability = 0.0,
    return_weights: bool = False,
) -> Any:
    """Attention in which a pair's distance has a vector of its own, added to its key and its value.

    softmax(q_i . (k_j + a_ij) / sqrt(d)) (v_j + b_ij), where a_ij and b_ij are the tables' rows for
    the distance of j from i, clipped to K; the tables have 2K + 1 rows. The sums are split, so that
    no tensor of L x S vectors is made: each query is multiplied by each row of the key table once, and
    the attention weights are summed by distance before they are multiplied by the value table.

    Shapes: query (*batch, L, d), key (*batch, S, d), value (*batch, S, dv), tables (2K + 1, d) and
        (2K + 1, dv) -> (*batch, L, dv) [, weights (*batch, L, S)].
    Raises: TypeError or ValueError that name the argument.
    Source: Shaw et al. 2018, equations 3 to 5; their section 3.3 keeps a tensor of L x S vectors.
    """
    if len(key_table) % 2 == 0:
        wanted = "2K + 1 rows, an odd number"
        raise argument_error(ValueError, "key_table", f"shape {shape_of(key_table)}", wanted)
    max_distance = len(key_table) // 2
    rows = relative_distances(
        query.shape[-2], key.shape[-2], max_distance, device=query.device
    ).expand(*query.shape[:-1], -1)  # *batch L S
    by_row = query @ key_table.mT * query.shape[-1] ** -0.5  # *batch L 2K+1
    bias = by_row.gather(-1, rows)  # *batch L S
    output, weights = attention(
        query, key, value, mask=mask, bias=bias, causal=causal, dropout_p=dropout_p,
        return_weights=True,
    )  # fmt: skip
    if value_table is not None:
        by_distance = torch.zeros_like(by_row).scatter_add(-1, rows, weights)  # *batch L 2K+1
        output = output + by_distance @ value_table
    return (output, weights) if return_weights else output


class RelativePositions(PositionScheme):
    """The key term of `relative_attention` as a scheme: its `bias` is q_i . a_ij / sqrt(d).

    The value term b_ij does not fit a bias: it needs the attention weights. `RelativeAttention` has both
    terms. The parameter `key_table` (2K + 1, d), shared by all heads, starts as noise of standard
    deviation 0.02.

    Shapes: query_ids (L) or (B, L), key_ids (S) or (B, S), query (B, H, L, d) -> bias (B, H, L, S).
    Raises: TypeError or ValueError that name the argument.
    Source: Shaw et al. 2018, equation 5.
    """

    @checked
    def __init__(self, d_head: PositiveInt, max_distance: NonNegativeInt) -> None:
        super().__init__()
        self.d_head, self.max_distance = d_head, max_distance
        self.key_table = nn.Parameter(torch.empty(2 * max_distance + 1, d_head).normal_(std=0.02))

    @checked(d="self.d_head", like="self.key_table")
    def bias(
        self,
        query_ids: Int[Tensor, " L"] | Int[Tensor, "B L"],
        key_ids: Int[Tensor, " S"] | Int[Tensor, "B S"],
        query: Float[Tensor, "B H L d"],
    ) -> Float[Tensor, "B H L S"]:
        """Each query times the vector of its distance from each key, scaled as scores are."""
        rows = clipped_distances(query_ids, key_ids, self.max_distance)  # *ids L S
        rows = rows.view(-1, 1, *rows.shape[-2:]).expand(*query.shape[:2], -1, -1)  # B H L S
        by_row = query @ self.key_table.mT * query.shape[-1] ** -0.5  # B H L 2K+1
        return by_row.gather(-1, rows)


class RelativeAttention(nn.Module):
    """`relative_attention` with tables of its own, shared by all heads and all samples.

    Parameters `key_table` and `value_table` (2K + 1, d) start as noise of standard deviation 0.02.
    Not a PositionScheme, since a scheme has no part in the values; `RelativePositions` is its key term.

    Shapes: query (*batch, L, d), key and value (*batch, S, d) -> (*batch, L, d); options as in
        `relative_attention`.
    Raises: TypeError or ValueError that name the argument.
    Source: Shaw et al. 2018, section 3.2.
    """

    @checked
    def __init__(
        self, d_head: PositiveInt, max_distance: NonNegativeInt, *, dropout: Probability = 0.0
    ) -> None:
        super().__init__()
        rows = 2 * max_distance + 1
        self.key_table = nn.Parameter(torch.empty(rows, d_head).normal_(std=0.02))
        self.value_table = nn.Parameter(torch.empty(rows, d_head).normal_(std=0.02))
        self.dropout = dropout

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        """`relative_attention`, with dropout in training only."""
        dropout_p = self.dropout if self.training else 0.0
        return relative_attention(
            query, key, value, self.key_table, self.value_table, dropout_p=dropout_p, **options
        )
