"""Masks: who may attend to whom. True in row i, column j means that query i may attend to key j.

A mask has rank 2 (L S), the same for every sample and head, or the rank of the scores (B H L S),
where an axis of size 1 stands for all. There is nothing in between: a mask of shape (B, S) would
be read as (L, S) without a word whenever the sizes agree.
"""

from __future__ import annotations

import functools
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..bounds import AtLeast, AtMost, Device, NonNegativeInt, PositiveInt
from ..shapes import checked

Mask = Bool[Tensor, "#L #S"] | Bool[Tensor, "*#batch #L #S"]

__all__ = [
    "causal_mask",
    "combine_masks",
    "document_mask",
    "masked_softmax",
    "padding_mask",
    "padding_mask_from_tokens",
    "prefix_mask",
    "window_mask",
]


@checked
def offsets(
    num_queries: NonNegativeInt,
    num_keys: NonNegativeInt,
    device: Device | None = None,
) -> Int[Tensor, "L S"]:
    """How many steps each key lies before each query, when the last query meets the last key.

    Shapes: (L, S), entry i + S - L - j. Positive is the past, 0 the query's own place, negative the
    future.
    """
    row = torch.arange(num_queries, device=device)[:, None] + (num_keys - num_queries)
    return row - torch.arange(num_keys, device=device)


@checked
def causal_mask(
    num_queries: NonNegativeInt,
    num_keys: NonNegativeInt | None = None,
    *,
    device: Device | None = None,
) -> Bool[Tensor, "L S"]:
    """Let a query see its own place and the past, aligned bottom-right.

    Bottom-right means that the last query sees every key: with a cache the L new queries are the
    last L of S positions. If L > S the first L - S rows are empty.

    Shapes: (L, S); num_keys defaults to num_queries.
    Raises: TypeError for sizes that are no whole numbers, ValueError for negative ones.
    Source: Vaswani et al. 2017, section 3.2.3.

    >>> causal_mask(2, 4).int().tolist()
    [[1, 1, 1, 0], [1, 1, 1, 1]]
    """
    num_keys = num_queries if num_keys is None else num_keys
    return offsets(num_queries, num_keys, device) >= 0


@checked
def window_mask(
    num_queries: NonNegativeInt,
    num_keys: NonNegativeInt | None = None,
    *,
    window: PositiveInt,
    device: Device | None = None,
) -> Bool[Tensor, "L S"]:
    """Let a query see keys fewer than `window` steps away, on both sides.

    Together with `causal_mask` this leaves the last `window` keys, the query's own included.

    Shapes: (L, S); num_keys defaults to num_queries.
    Raises: ValueError if window < 1.
    Source: Beltagy et al. 2020, section 3.1, where w counts both sides together (w / 2 on each).

    >>> window_mask(4, window=2).int().tolist()
    [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    """
    num_keys = num_queries if num_keys is None else num_keys
    window = torch.sym_min(window, num_queries + num_keys)  # a larger one may not fit into int64
    return offsets(num_queries, num_keys, device).abs() < window


@checked
def padding_mask(
    lengths: Annotated[Int[Tensor, " B"], AtLeast(0), AtMost("num_keys")],
    num_keys: NonNegativeInt,
    *,
    heads: bool = True,
) -> Bool[Tensor, "B ..."]:
    """Hide the keys past each sample's length.

    Shapes: lengths (B) -> (B, 1, 1, S), to combine with scores (B, H, L, S); with heads=False
    (B, 1, S), for scores (B, L, S).
    Raises: TypeError if lengths are not integers; ValueError if one is negative or above num_keys.
    Source: chapter 4.

    >>> padding_mask(torch.tensor([2, 3]), 4, heads=False).int().tolist()
    [[[1, 1, 0, 0]], [[1, 1, 1, 0]]]
    """
    kept = torch.arange(num_keys, device=lengths.device) < lengths[:, None]
    return kept[:, None, None] if heads else kept[:, None]


@checked
def padding_mask_from_tokens(
    tokens: Int[Tensor, "B S"], pad_id: int, *, heads: bool = True
) -> Bool[Tensor, "B ..."]:
    """Hide the keys that are padding tokens, wherever they stand.

    Shapes: tokens (B, S) -> (B, 1, 1, S); with heads=False (B, 1, S).
    Raises: TypeError if tokens are not integers; ValueError if their rank is not 2.
    Source: chapter 4.
    """
    kept = tokens != pad_id
    return kept[:, None, None] if heads else kept[:, None]


@checked
def prefix_mask(
    prefix_lengths: Annotated[Int[Tensor, " B"], AtLeast(0), AtMost("num_tokens")],
    num_tokens: NonNegativeInt,
) -> Bool[Tensor, "B 1 L L"]:
    """Let every token see the prefix, and the past beyond it: a prefix language model.

    Shapes: prefix_lengths (B) -> (B, 1, L, L).
    Raises: as padding_mask.
    Source: Raffel et al. 2020, section 3.2.1.
    """
    prefix = padding_mask(prefix_lengths, num_tokens)
    return prefix | causal_mask(num_tokens, device=prefix.device)


@checked
def document_mask(document_ids: Int[Tensor, "B L"]) -> Bool[Tensor, "B 1 L L"]:
    """Let a token see only tokens of its own document, when several are packed into one row.

    Shapes: document_ids (B, L), equal numbers for one document -> (B, 1, L, L).
    Raises: TypeError if the ids are not integers; ValueError if their rank is not 2.
    Source: Krell et al. 2021, section 3.2.
    """
    return (document_ids[:, :, None] == document_ids[:, None, :])[:, None]


@checked
def combine_masks(*masks: Mask | None) -> Bool[Tensor, "..."] | None:
    """Allow what every mask allows; None allows everything.

    Shapes: each rank 2 (L S) or all others of one common rank, broadcastable.
    Raises: TypeError if a mask is not boolean; ValueError if ranks or shapes do not fit.
    Source: chapter 4.
    """
    given = [mask for mask in masks if mask is not None]
    return functools.reduce(torch.logical_and, given) if given else None


@checked
def masked_softmax(
    scores: Float[Tensor, "*batch L S"], allowed: Mask | None = None
) -> Float[Tensor, "*batch L S"]:
    """Softmax over the keys that are allowed; a fully masked row gives zeros, and zero gradients.

    Hidden scores become -inf, so that their weight is exactly 0 at any scale and in any dtype. A
    fully masked row would be -inf throughout and its softmax NaN: so it is filled with 0 before the
    softmax and zeroed after it, and no NaN ever exists. Zeroing alone is not enough where -inf was added
    to the scores: the softmax's derivative is NaN there, and 0 x NaN is NaN.

    Shapes: scores (*batch, L, S), allowed of rank 2 or of the scores' rank, broadcastable.
    Raises: TypeError for a mask that is not boolean; ValueError for one that does not fit.
    Source: Vaswani et al. 2017, section 3.2.3, for -inf before the softmax; fully masked rows: chapter 4.
    """
    if allowed is None:
        return torch.softmax(scores, dim=-1)
    empty = ~allowed.any(dim=-1, keepdim=True)
    filled = scores.masked_fill(~allowed, float("-inf")).masked_fill(empty, 0.0)
    return torch.softmax(filled, dim=-1).masked_fill(empty, 0.0)
