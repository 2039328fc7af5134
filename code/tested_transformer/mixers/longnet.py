"""LongNet's dilated attention: near keys all, far keys ever fewer, in branches mixed by their denominators."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..bounds import NonNegativeInt, PositiveInt
from ..errors import argument_error
from ..shapes import checked
from .fixed_patterns import attention_per_head
from .patterns import Part, PositionIDs, RulePattern, make_part

__all__ = ["DilatedBranch", "LongNet", "longnet_attention"]


@dataclass(frozen=True)
class DilatedBranch(RulePattern):
    """Segments of `segment` positions; in each, every `dilation`-th one, which attend to each other.

    The first one of a segment is the one at `offset`.

    Raises: TypeError or ValueError that name the field.
    Source: Ding et al. 2023 (LongNet), section 2.2.
    """

    segment: PositiveInt
    dilation: PositiveInt
    offset: NonNegativeInt = 0
    causal: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, limit in (("dilation", self.segment + 1), ("offset", self.dilation)):
            if (got := getattr(self, name)) >= limit:
                raise argument_error(ValueError, name, got, f"a number below {limit}")

    @checked
    def rule(self, query_ids: PositionIDs, key_ids: PositionIDs) -> Bool[Tensor, "..."]:
        """True where both are in one segment, both at positions that the branch selects."""
        same = query_ids // self.segment == key_ids // self.segment
        selected = self.selects(query_ids) & self.selects(key_ids)
        return same & selected & ((key_ids <= query_ids) | (not self.causal))

    @checked
    def selects(self, ids: PositionIDs) -> Bool[Tensor, "..."]:
        """True at the positions of the branch, which are counted from the start of their segment."""
        return ids % self.segment % self.dilation == self.offset

    @checked
    def parts(self, length: NonNegativeInt) -> list[Part]:
        """One group per segment."""
        starts = torch.arange(0, length, self.segment)[:, None]
        end = max(self.offset, min(self.segment, length))
        selected = torch.arange(self.offset, end, self.dilation)
        ids = starts + selected  # groups r; none, if the sequence ends before the offset
        return [make_part(ids, ids, self.rule, length)] if len(selected) else []


@dataclass(frozen=True)
class LongNet(RulePattern):
    """The branches of one head. Head h begins at position h mod dilation in each segment of a branch.

    A pair in two branches is in two parts, so its key counts twice.

    segments: of each branch. dilations: as many.

    Raises: TypeError or ValueError that name the field.
    Source: Ding et al. 2023 (LongNet), sections 2.2 and 2.3.
    """

    segments: tuple[int, ...]
    dilations: tuple[int, ...]
    head: NonNegativeInt = 0
    causal: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.segments) != len(self.dilations) or not self.segments:
            expected = f"one for each of {len(self.segments)} segments, and at least one"
            raise argument_error(ValueError, "dilations", self.dilations, expected)
        _ = self.branches  # which check their own sizes

    @property
    def branches(self) -> list[DilatedBranch]:
        """One for each segment length."""
        pairs = zip(self.segments, self.dilations, strict=True)
        return [DilatedBranch(w, r, self.head % r, self.causal) for w, r in pairs]

    @checked
    def rule(self, query_ids: PositionIDs, key_ids: PositionIDs) -> Bool[Tensor, "..."]:
        """True where one branch or more has the pair."""
        return sum(branch.rule(query_ids, key_ids).int() for branch in self.branches) > 0

    @checked
    def counts(self, length: NonNegativeInt) -> Int[Tensor, "L L"]:
        """In how many branches each pair is."""
        return sum(branch.mask(length).long() for branch in self.branches)

    @checked
    def parts(self, length: NonNegativeInt) -> list[Part]:
        """Those of all branches."""
        return [part for branch in self.branches for part in branch.parts(length)]


@checked
def longnet_attention(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H L d"],
    value: Float[Tensor, "B H L dv"],
    segments: tuple[int, ...],
    dilations: tuple[int, ...],
    *,
    causal: bool = True,
    key_mask: Bool[Tensor, "B L"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "B H L dv"]:
    """Dilated attention: each branch has a softmax of its own, and they are mixed by their denominators.

    That is one softmax over the keys of all branches, in which a key of two branches counts twice. A
    query that no branch selects gets zeros.

    Shapes: query and key (B, H, L, d), value (B, H, L, dv), key_mask (B, L) -> (B, H, L, dv).
    Raises: TypeError or ValueError that name the argument.
    Source: Ding et al. 2023 (LongNet), sections 2.2 and 2.3.
    """
    heads = range(max(1, query.shape[1]))  # one, at least, checks the arguments
    patterns = [LongNet(segments, dilations, head, causal) for head in heads]
    options = {"key_mask": key_mask, "scale": scale}
    return attention_per_head(query, key, value, patterns[: query.shape[1]], **options)
