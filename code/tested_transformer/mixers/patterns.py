"""Sparse attention by a pattern: a rule, fixed before any token is read, for which keys each query attends to.

A pattern says it twice. `mask` is the definition, one entry per pair, and its picture; dense attention under
that mask is the slow twin. `parts` lists the same pairs as groups of queries that share their keys, so that
`sparse_attention` computes those scores and no others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..bounds import NonNegativeInt
from ..functional.online_softmax import Partial, empty_state, merge, normalize, partial_softmax
from ..shapes import check_fields, checked

__all__ = ["Part", "Pattern", "RulePattern", "make_part", "sparse_attention"]

PositionIDs = Int[Tensor, "..."]  # of any shape that broadcasts


class Part(NamedTuple):
    """Some of a pattern's pairs: groups of r queries that share c keys.

    A query is in one group of a part at most. A position of -1 is none: it evens out groups of different sizes.

    Shapes: queries (groups, r), keys (groups, c), positions; mask (groups, r, c), True where a query of a
        group attends to a key of that group.
    """

    queries: Int[Tensor, "groups r"]
    keys: Int[Tensor, "groups c"]
    mask: Bool[Tensor, "groups r c"]


@runtime_checkable
class Pattern(Protocol):
    """Which keys a query attends to, in a sequence of any length."""

    def mask(self, length: int) -> Bool[Tensor, "L L"]:
        """True in row i, column j: query i may attend to key j."""

    def parts(self, length: int) -> list[Part]:
        """The same pairs, each in one part. A pair that is in two of them counts twice."""


class RulePattern:
    """A pattern that is a rule: `rule(i, j)` is True where query i attends to key j.

    The rule takes tensors of positions, which it broadcasts. It is FlexAttention's `mask_mod` without its
    first two arguments.
    """

    def __post_init__(self) -> None:
        check_fields(self)

    @checked
    def rule(self, query_ids: PositionIDs, key_ids: PositionIDs) -> Bool[Tensor, "..."]:
        """True where the query attends to the key."""
        raise NotImplementedError

    @checked
    def mask(self, length: NonNegativeInt) -> Bool[Tensor, "L L"]:
        """The rule for every pair of positions: the picture of the pattern."""
        ids = torch.arange(length)
        return self.rule(ids[:, None], ids)


@checked
def make_part(
    queries: Int[Tensor, "groups r"],
    keys: Int[Tensor, "groups c"],
    rule: Callable[[Tensor, Tensor], Tensor],
    length: NonNegativeInt,
) -> Part:
    """Groups of positions as a part: those outside the sequence become none, and `rule` decides the pairs.

    rule: takes the positions of queries and keys, broadcast against each other, and is True where that query
        attends to that key; FlexAttention's `mask_mod` without its first two arguments.

    Shapes: queries (groups, r), keys (groups, c) -> both, and the mask (groups, r, c).
    Raises: TypeError or ValueError that name the argument.
    """
    inside = [(ids >= 0) & (ids < length) for ids in (queries, keys)]
    mask = (
        rule(queries[:, :, None], keys[:, None, :]) & inside[0][:, :, None] & inside[1][:, None, :]
    )
    return Part(queries.where(inside[0], -1), keys.where(inside[1], -1), mask)


@checked
def sparse_attention(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H L d"],
    value: Float[Tensor, "B H L dv"],
    pattern: Pattern,
    *,
    key_mask: Bool[Tensor, "B L"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "B H L dv"]:
    """Attention over the pairs of a pattern alone: part by part, merged by their log-sum-exp.

    A query without keys gets zeros. The softmax runs in at least float32.

    key_mask: True where a key is no padding. scale: of the scores, 1 / sqrt(d) by default.

    Shapes: query and key (B, H, L, d), value (B, H, L, dv), key_mask (B, L) -> (B, H, L, dv).
    Raises: TypeError or ValueError that name the argument.
    Source: chapter 15 (`merge`); Child et al. 2019, section 5.5, for attention by parts.
    """
    length, wide = query.shape[2], torch.promote_types(query.dtype, torch.float32)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = query.to(wide) * scale, key.to(wide), value.to(wide)
    state = empty_state(q, v.shape[-1])
    for part in pattern.parts(length):
        scores = q[:, :, part.queries] @ k[:, :, part.keys].mT  # B H groups r c
        allowed = part.mask
        if key_mask is not None:
            allowed = allowed & key_mask[:, None, part.keys][:, :, :, None]  # B 1 groups r c
        scores = scores.masked_fill(~allowed, -math.inf)
        found = partial_softmax(scores, v[:, :, part.keys])  # B H groups r
        state = merge(state, _at_their_queries(found, part, length))
    return normalize(state)[0].to(query.dtype)


def _at_their_queries(found: Partial, part: Part, length: int) -> Partial:
    """What each query has of this part, at its own position; of a query in no group, that is nothing."""
    ids = part.queries.flatten() % (length + 1)  # none, -1, becomes one position past the last
    found = Partial(*(each.flatten(2, 3) for each in found))  # B H groups*r
    nothing = found.maximum.new_empty(*found.maximum.shape[:2], length + 1, 0)
    state = empty_state(nothing, found.accumulator.shape[-1])
    pairs = zip(state, found, strict=True)
    return Partial(*(old.index_copy(2, ids, new)[:, :, :length] for old, new in pairs))
