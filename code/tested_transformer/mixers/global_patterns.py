"""Patterns with tokens that everybody reads: Longformer's global tokens, BigBird's global and random blocks."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..bounds import AtLeast, NonNegativeInt, PositiveInt
from ..errors import argument_error, shape_of
from ..shapes import check_fields, checked
from .fixed_patterns import Local
from .patterns import Part, PositionIDs, RulePattern, make_part, sparse_attention

__all__ = ["BigBird", "LocalGlobal", "big_bird_attention"]


# --- A window and global tokens -------------------------------------------------------------------


@dataclass(frozen=True)
class LocalGlobal(RulePattern):
    """A local window, and global tokens: each of them reads every token and is read by every token.

    global_ids: the positions of the global tokens; those past the end of a sequence are none of it.
    causal: no query reads a later key, a global one neither.

    Raises: TypeError or ValueError that name the field.
    Source: Beltagy et al. 2020 (Longformer).
    """

    window: PositiveInt
    global_ids: tuple[NonNegativeInt, ...]
    causal: bool = False

    @checked
    def rule(self, query_ids: PositionIDs, key_ids: PositionIDs) -> Bool[Tensor, "..."]:
        """True in the window, and where the query or the key is a global token."""
        near = Local(self.window, self.causal).rule(query_ids, key_ids)
        either = self._is_global(query_ids) | self._is_global(key_ids)
        return (near | either) & self._seen(query_ids, key_ids)

    @checked
    def parts(self, length: NonNegativeInt) -> list[Part]:
        """Local pairs, global queries with all keys, and local queries with the global keys."""
        near = Local(self.window, self.causal)

        def both_local(queries: Tensor, keys: Tensor) -> Tensor:
            return near.rule(queries, keys) & ~self._is_global(queries) & ~self._is_global(keys)

        def local_query(queries: Tensor, keys: Tensor) -> Tensor:
            return self._seen(queries, keys) & ~self._is_global(queries)

        every = torch.arange(length)
        every, chosen = every[None], every[self._is_global(every)][None]  # one group each
        local = [make_part(q, k, both_local, length) for q, k, _ in near.parts(length)]
        if not chosen.numel():
            return local
        return [
            *local,
            make_part(chosen, every, self._seen, length),
            make_part(every, chosen, local_query, length),
        ]

    def _is_global(self, ids: Tensor) -> Tensor:
        return torch.isin(ids, torch.tensor(self.global_ids, dtype=torch.int64))

    def _seen(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Whether a key is no later than a causal query."""
        return keys <= queries if self.causal else _always(queries, keys)


# --- Blocks: a window, two global ones, and random ones -------------------------------------------


@dataclass(frozen=True)
class BigBird:
    """Blocks of tokens: the first and the last are global, the others read their neighbors and random blocks.

    A block between those two reads itself, the blocks beside it, the first, the last, and
    `num_random_blocks` others, sampled without replacement, or all others where there are no more. It is not
    causal: the last block is read by all.

    Raises: TypeError or ValueError that name the field.
    Source: Zaheer et al. 2020 (Big Bird); its blocked form as in transformers, models/big_bird.
    """

    block_size: PositiveInt
    num_random_blocks: NonNegativeInt
    seed: NonNegativeInt = 0

    def __post_init__(self) -> None:
        check_fields(self)

    def _random_blocks(self, num_blocks: int) -> Int[Tensor, "rows r"]:
        """For block 1, 2, ... up to the last but one, the blocks that it reads by chance; -1 is none."""
        generator = random.Random(self.seed)
        rows = []
        for i in range(1, num_blocks - 1):
            first, last = max(1, i - 1), min(num_blocks - 2, i + 1)  # neighbors that are not global
            others = num_blocks - 2 - (last - first + 1)
            chosen = generator.sample(range(1, others + 1), min(self.num_random_blocks, others))
            chosen = [j if j < first else j + last - first + 1 for j in chosen]
            rows.append(chosen + [-1] * (self.num_random_blocks - len(chosen)))
        return torch.tensor(rows, dtype=torch.int64).view(len(rows), self.num_random_blocks)

    def _key_blocks(self, num_blocks: int) -> Int[Tensor, "rows c"]:
        """For the same blocks, all that they read, each once; -1 is none."""
        row = torch.arange(1, max(1, num_blocks - 1))[:, None]
        fixed = torch.cat((0 * row, row - 1, row, row + 1, 0 * row + num_blocks - 1), 1)
        blocks = torch.cat((fixed, self._random_blocks(num_blocks)), 1)
        before = (blocks[:, :, None] == blocks[:, None, :]).tril(-1).any(-1)
        return blocks.masked_fill(before, -1)

    @checked
    def mask(self, length: NonNegativeInt) -> Bool[Tensor, "L L"]:
        """The pairs of blocks, each as block_size x block_size pairs of tokens."""
        num_blocks = -(-length // self.block_size)
        allowed = torch.zeros(num_blocks, num_blocks, dtype=torch.bool)
        for row, blocks in enumerate(self._key_blocks(num_blocks).tolist(), start=1):
            allowed[row, [j for j in blocks if j >= 0]] = True
        allowed[:1] = allowed[-1:] = True
        of_token = torch.arange(length) // self.block_size
        return allowed[of_token][:, of_token]

    @checked
    def parts(self, length: NonNegativeInt) -> list[Part]:
        """The global queries with all keys; each other block with its key blocks."""
        num_blocks = -(-length // self.block_size)
        within = torch.arange(self.block_size)
        ends = torch.tensor([0, num_blocks - 1][: min(2, num_blocks)], dtype=torch.int64)[:, None]
        every = torch.arange(max(1, length)).expand(len(ends), -1)
        parts = [make_part(ends * self.block_size + within, every, _always, length)]
        if num_blocks > 2:
            blocks = self._key_blocks(num_blocks)[..., None]  # rows c 1
            keys = (blocks * self.block_size + within).flatten(1)  # of block -1, all before token 0
            queries = torch.arange(1, num_blocks - 1)[:, None] * self.block_size + within
            parts.append(make_part(queries, keys, _always, length))
        return parts


def _always(queries: Tensor, keys: Tensor) -> Tensor:
    """A rule that allows every pair."""
    return torch.tensor(True)


@dataclass(frozen=True, eq=False)
class _GivenBlocks(BigBird):
    """The pattern with random blocks that somebody else has sampled."""

    given: Int[Tensor, "rows r"] | None = None

    def _random_blocks(self, num_blocks: int) -> Int[Tensor, "rows r"]:
        return self.given


@checked
def big_bird_attention(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H L d"],
    value: Float[Tensor, "B H L dv"],
    random_blocks: Annotated[Int[Tensor, "H rows r"], AtLeast(-1)],
    *,
    block_size: PositiveInt,
    key_mask: Bool[Tensor, "B L"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "B H L dv"]:
    """BigBird's attention with given random blocks, other ones in each head.

    A block that a query block reads anyway, or that is named twice, counts once.

    random_blocks: in row i those of block i + 1, for all blocks but the first and the last; -1 is none.
    key_mask, scale: see `sparse_attention`.

    Shapes: query and key (B, H, L, d), value (B, H, L, dv), random_blocks (H, ceil(L / block_size) - 2, r),
        key_mask (B, L) -> (B, H, L, dv).
    Raises: TypeError or ValueError that name the argument.
    Source: Zaheer et al. 2020 (Big Bird); its blocked form as in transformers, models/big_bird.
    """
    num_blocks = -(-query.shape[2] // block_size)
    if random_blocks.shape[1] != max(0, num_blocks - 2):
        wanted = f"{max(0, num_blocks - 2)} rows, one for each block between the first and the last"
        raise argument_error(
            ValueError, "random_blocks", f"shape {shape_of(random_blocks)}", wanted
        )
    if (random_blocks >= max(1, num_blocks)).any():
        raise argument_error(
            ValueError, "random_blocks", random_blocks.max(), f"below {num_blocks}"
        )
    heads = [
        sparse_attention(
            query[:, h, None], key[:, h, None], value[:, h, None],
            _GivenBlocks(block_size, blocks.shape[1], given=blocks), key_mask=key_mask, scale=scale,
        )
        for h, blocks in enumerate(random_blocks)
    ]  # fmt: skip
    return torch.cat(heads, 1) if heads else query.new_zeros(value.shape)
