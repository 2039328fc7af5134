"""Patterns that know positions alone: local windows, windows with holes, blocks with summaries, and merged heads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..bounds import NonNegativeInt, PositiveInt
from ..errors import argument_error
from ..shapes import checked
from .patterns import Part, Pattern, PositionIDs, RulePattern, make_part, sparse_attention

__all__ = [
    "Atrous",
    "Blocks",
    "Local",
    "Merged",
    "Summaries",
    "attention_per_head",
    "fixed_pattern",
    "strided_pattern",
]


@dataclass(frozen=True)
class Local(RulePattern):
    """Each query attends to the keys fewer than `window` steps away; with `causal`, to its last `window` keys.

    Raises: TypeError or ValueError that name the field.
    Source: Parmar et al. 2018 (Image Transformer), section 3; Beltagy et al. 2020 (Longformer), section 3.1.
    """

    window: PositiveInt
    causal: bool = False

    @checked
    def rule(self, query_ids: PositionIDs, key_ids: PositionIDs) -> Bool[Tensor, "..."]:
        """True where the key is near enough, and not in the future of a causal query."""
        steps = query_ids - key_ids
        return (steps < self.window) & (steps >= (0 if self.causal else 1 - self.window))

    @checked
    def parts(self, length: NonNegativeInt) -> list[Part]:
        """Blocks of `window` queries; their keys lie in the same block and in those beside it."""
        block = max(1, min(self.window, length))
        starts = torch.arange(0, length, block)[:, None]
        after = 1 if self.causal else 2  # blocks
        keys = starts + torch.arange(-block, after * block)
        return [make_part(starts + torch.arange(block), keys, self.rule, length)]


@dataclass(frozen=True)
class Atrous(RulePattern):
    """Each query attends to every `dilation`-th key, counted from itself; with `causal`, to the earlier ones.

    Raises: TypeError or ValueError that name the field.
    Source: Child et al. 2019 (Sparse Transformer), section 4.3: the second head of strided attention.
    """

    dilation: PositiveInt
    causal: bool = False

    @checked
    def rule(self, query_ids: PositionIDs, key_ids: PositionIDs) -> Bool[Tensor, "..."]:
        """True where the distance is a multiple of the dilation."""
        steps = query_ids - key_ids
        return (steps % self.dilation == 0) & ((steps >= 0) | (not self.causal))

    @checked
    def parts(self, length: NonNegativeInt) -> list[Part]:
        """One group per remainder: positions with the same remainder attend to each other and to no others."""
        remainders = torch.arange(min(self.dilation, length))[:, None]
        ids = remainders + torch.arange(0, max(1, length), self.dilation)  # groups r
        return [make_part(ids, ids, self.rule, length)]


@dataclass(frozen=True)
class Blocks(RulePattern):
    """The sequence in blocks: each query attends to the keys of its own block.

    Raises: TypeError or ValueError that name the field.
    Source: Child et al. 2019 (Sparse Transformer), section 4.3: the first head of fixed attention.
    """

    block: PositiveInt
    causal: bool = False

    @checked
    def rule(self, query_ids: PositionIDs, key_ids: PositionIDs) -> Bool[Tensor, "..."]:
        """True where both are in one block."""
        same = query_ids // self.block == key_ids // self.block
        return same & ((key_ids <= query_ids) | (not self.causal))

    @checked
    def parts(self, length: NonNegativeInt) -> list[Part]:
        """One group per block."""
        block = max(1, min(self.block, length))
        ids = torch.arange(0, length, block)[:, None] + torch.arange(block)
        return [make_part(ids, ids, self.rule, length)]


@dataclass(frozen=True)
class Summaries(RulePattern):
    """Each query attends to the last `summary` positions of every block; with `causal`, to the earlier ones.

    Raises: TypeError or ValueError that name the field.
    Source: Child et al. 2019 (Sparse Transformer), section 4.3: the second head of fixed attention.
    """

    block: PositiveInt
    summary: PositiveInt
    causal: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.summary > self.block:
            expected = f"at most block = {self.block}"
            raise argument_error(ValueError, "summary", self.summary, expected)

    @checked
    def rule(self, query_ids: PositionIDs, key_ids: PositionIDs) -> Bool[Tensor, "..."]:
        """True where the key is one of the last of its block."""
        last = key_ids % self.block >= self.block - self.summary
        return last & ((key_ids <= query_ids) | (not self.causal))

    @checked
    def parts(self, length: NonNegativeInt) -> list[Part]:
        """One group: all queries, and the summaries of all blocks."""
        ids = torch.arange(length)
        keys = ids[ids % self.block >= self.block - self.summary]
        return [make_part(ids[None], keys[None], self.rule, length)] if len(keys) else []


@dataclass(frozen=True)
class Merged(RulePattern):
    """The pairs of several patterns, each pair once: one head that has all their keys.

    Raises: TypeError or ValueError that name the field.
    Source: Child et al. 2019 (Sparse Transformer), section 5.1: merged heads.
    """

    patterns: tuple[RulePattern, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.patterns:
            raise argument_error(ValueError, "patterns", self.patterns, "at least one")

    @checked
    def rule(self, query_ids: PositionIDs, key_ids: PositionIDs) -> Bool[Tensor, "..."]:
        """True where one of the patterns has the pair."""
        return reduce(torch.logical_or, (each.rule(query_ids, key_ids) for each in self.patterns))

    @checked
    def parts(self, length: NonNegativeInt) -> list[Part]:
        """The parts of all patterns, without the pairs that an earlier pattern has."""
        parts = []
        for n, pattern in enumerate(self.patterns):
            for queries, keys, mask in pattern.parts(length):
                for earlier in self.patterns[:n]:
                    mask = mask & ~earlier.rule(queries[:, :, None], keys[:, None, :])
                parts.append(Part(queries, keys, mask))
        return parts


@checked
def strided_pattern(stride: PositiveInt, *, causal: bool = True) -> Merged:
    """OpenAI's strided pattern as one head: the last `stride` keys, and every `stride`-th key before them.

    Raises: TypeError or ValueError that name the argument.
    Source: Child et al. 2019 (Sparse Transformer), section 4.3.

    >>> strided_pattern(3).mask(8)[7].int().tolist()
    [0, 1, 0, 0, 1, 1, 1, 1]
    """
    return Merged((Local(stride, causal), Atrous(stride, causal)))


@checked
def fixed_pattern(block: PositiveInt, summary: PositiveInt = 1, *, causal: bool = True) -> Merged:
    """OpenAI's fixed pattern as one head: the query's own block, and the last keys of every other block.

    Raises: TypeError or ValueError that name the argument.
    Source: Child et al. 2019 (Sparse Transformer), section 4.3.

    >>> fixed_pattern(3).mask(8)[7].int().tolist()
    [0, 0, 1, 0, 0, 1, 1, 1]
    """
    return Merged((Blocks(block, causal), Summaries(block, summary, causal)))


@checked
def attention_per_head(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H L d"],
    value: Float[Tensor, "B H L dv"],
    patterns: list[Pattern],
    *,
    key_mask: Bool[Tensor, "B L"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "B H L dv"]:
    """Sparse attention with a pattern of its own for each head.

    Shapes: query and key (B, H, L, d), value (B, H, L, dv), one pattern per head, key_mask (B, L) ->
        (B, H, L, dv).
    Raises: TypeError or ValueError that name the argument.
    """
    if len(patterns) != query.shape[1]:
        expected = f"one pattern for each of {query.shape[1]} heads"
        raise argument_error(ValueError, "patterns", len(patterns), expected)
    heads = zip(query.split(1, 1), key.split(1, 1), value.split(1, 1), patterns, strict=False)
    options = {"key_mask": key_mask, "scale": scale}
    outputs = [sparse_attention(*head, **options) for head in heads]
    return torch.cat(outputs, 1) if outputs else value.clone()
