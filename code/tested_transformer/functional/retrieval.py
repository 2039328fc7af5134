"""Retrieval: a text in chunks, the nearest neighbors of each, and who may read them."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from ..bounds import PositiveInt
from ..errors import argument_error, shape_of
from ..shapes import checked
from .attention import attention

__all__ = ["chunk_read_by", "chunked_cross_attention", "nearest_neighbors", "split_chunks"]


@checked
def split_chunks(
    ids: Int[Tensor, "*batch L"], chunk_size: PositiveInt
) -> Int[Tensor, "*batch N m"]:
    """The whole chunks of a sequence, N = L // chunk_size; tokens after the last of them are left out.

    Shapes: (..., L) -> (..., N, m).
    Raises: TypeError or ValueError that name the argument.
    Source: Borgeaud et al. 2022 (RETRO).

    >>> split_chunks(torch.arange(7), 3).tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    num_chunks = ids.shape[-1] // chunk_size
    return ids[..., : num_chunks * chunk_size].unflatten(-1, (num_chunks, chunk_size))


@checked
def chunk_read_by(
    position_ids: Int[Tensor, "*any"], chunk_size: PositiveInt
) -> Int[Tensor, "*any"]:
    """The chunk whose neighbors each position reads: the newest that is complete, its own token included.

    Neighbors are retrieved with all tokens of their chunk, so only its last token and those after it
    may read them. Positions and chunks count from 0; -1 means none.

    Shapes: any.
    Raises: TypeError or ValueError that name the argument.
    Source: Borgeaud et al. 2022 (RETRO); the shift in code: labml_nn/transformers/retro/model.py.

    >>> chunk_read_by(torch.arange(9), 4).tolist()
    [-1, -1, -1, 0, 0, 0, 0, 1, 1]
    """
    return (position_ids + 1).div(chunk_size, rounding_mode="floor") - 1


@checked
def chunked_cross_attention(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H N R d"],
    value: Float[Tensor, "B H N R dv"],
    *,
    chunk_size: PositiveInt,
    mask: Bool[Tensor, "B N R"] | None = None,
) -> Float[Tensor, "B H L dv"]:
    """Each token attends to the neighbors of the newest complete chunk: zeros for the first m - 1 tokens.

    The queries move m - 1 tokens to the left; then those that read the same neighbors are one chunk.

    N: the number of complete chunks, L // chunk_size. R: the tokens of all neighbors of a chunk.
    mask: True where a neighbor's token may be read; a chunk without any gives zeros.

    Shapes: query (B, H, L, d), key (B, H, N, R, d), value (B, H, N, R, dv), mask (B, N, R) -> (B, H, L, dv).
    Raises: TypeError or ValueError that name the argument.
    Source: Borgeaud et al. 2022 (RETRO); the shift in code: labml_nn/transformers/retro/model.py.
    """
    length, num_chunks, shift = query.shape[2], key.shape[2], chunk_size - 1
    if num_chunks != length // chunk_size:
        wanted = f"neighbors of L // chunk_size = {length // chunk_size} chunks"
        raise argument_error(ValueError, "key", f"shape {shape_of(key)}", wanted)
    moved = query[:, :, shift:]
    missing = num_chunks * chunk_size - moved.shape[2]  # of the last chunk of queries
    moved = functional.pad(moved, (0, 0, 0, missing))
    chunks = moved.unflatten(2, (num_chunks, chunk_size))  # B H N m d
    mask = None if mask is None else mask[:, None, :, None]  # B 1 N 1 R
    read = attention(chunks, key, value, mask=mask).flatten(2, 3)  # B H N*m dv
    return functional.pad(read, (0, 0, shift, 0))[:, :, :length]


@checked
def nearest_neighbors(
    queries: Float[Tensor, "Q d"],
    keys: Float[Tensor, "S d"],
    num_neighbors: PositiveInt,
    *,
    allowed: Bool[Tensor, "Q S"] | None = None,
) -> Int[Tensor, "Q k"]:
    """The keys at the smallest distance from each query, the nearest first: exact, without an index.

    Of keys at the same distance the first comes first. Where fewer are allowed, -1 stands for none.

    Shapes: queries (Q, d), keys (S, d), allowed (Q, S) -> numbers of keys (Q, num_neighbors).
    Raises: TypeError or ValueError that name the argument.
    Source: Borgeaud et al. 2022 (RETRO): neighbors by the L2 distance of their keys.

    >>> nearest_neighbors(torch.tensor([[0.0]]), torch.tensor([[3.0], [1.0], [-2.0]]), 2).tolist()
    [[1, 2]]
    """
    distance = (queries[:, None] - keys).square().sum(-1)  # Q S
    if allowed is not None:
        distance = distance.masked_fill(~allowed, torch.inf)
    distance, order = distance.sort(dim=-1, stable=True)
    order = order.masked_fill(distance == torch.inf, -1)[:, :num_neighbors]
    return functional.pad(order, (0, num_neighbors - order.shape[1]), value=-1)
