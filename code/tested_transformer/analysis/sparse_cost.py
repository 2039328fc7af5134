"""What a sparse pattern costs: the pairs it has, the scores that are computed, FLOPs and bytes."""

from __future__ import annotations

from typing import NamedTuple

from ..bounds import NonNegativeInt, PositiveInt
from ..mixers.patterns import Pattern
from ..shapes import checked

__all__ = ["PatternCost", "dense_cost", "pattern_cost"]


class PatternCost(NamedTuple):
    """What attention under a pattern takes, for one head of one sequence.

    pairs: of a query and a key that it attends to. scores: those computed, the masked ones of a group
    included. flops: two for each multiplication with an addition, in the scores and in the weighted sums.
    bytes: of the queries, keys and values that the groups read, each once per group.
    """

    pairs: int
    scores: int
    flops: int
    bytes: int


@checked
def pattern_cost(
    pattern: Pattern, length: NonNegativeInt, d_head: PositiveInt, *, item: PositiveInt = 4
) -> PatternCost:
    """What `sparse_attention` does for one head, counted from the parts of its pattern.

    item: bytes of a number.

    Raises: TypeError or ValueError that name the argument.
    """
    parts = pattern.parts(length)
    scores = sum(part.mask.numel() for part in parts)
    read = sum(part.queries.numel() + 2 * part.keys.numel() for part in parts)
    pairs = sum(int(part.mask.sum()) for part in parts)
    return PatternCost(pairs, scores, 4 * d_head * scores, item * d_head * read)


@checked
def dense_cost(
    length: NonNegativeInt, d_head: PositiveInt, *, causal: bool = False, item: PositiveInt = 4
) -> PatternCost:
    """The same for full attention in one group, which computes all scores and masks the future.

    Raises: TypeError or ValueError that name the argument.
    """
    pairs = length * (length + 1) // 2 if causal else length**2
    scores = length**2
    return PatternCost(pairs, scores, 4 * d_head * scores, item * d_head * 3 * length)
