"""Which block of a pool holds which tokens: a free list, reference counts and block tables, no tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..bounds import NonNegativeInt, PositiveInt, TokenID
from ..errors import argument_error
from ..shapes import check_fields, checked

__all__ = ["BlockManager", "BlockPool", "BlockTable", "PoolExhausted"]


class PoolExhausted(RuntimeError):
    """More blocks are needed than are free."""


@dataclass
class BlockTable:
    """The blocks of one sequence in the order of its tokens, and how many tokens there are.

    Raises: TypeError or ValueError that name the field.
    """

    blocks: list[NonNegativeInt] = field(default_factory=list)
    length: NonNegativeInt = 0

    def __post_init__(self) -> None:
        check_fields(self)


class BlockPool:
    """Blocks 0 to num_blocks - 1: which of them are free, and how many sequences read each.

    Raises: TypeError or ValueError that name the argument.
    Source: Kwon et al. 2023, section 4.4.
    """

    @checked
    def __init__(self, num_blocks: PositiveInt) -> None:
        self.free = list(reversed(range(num_blocks)))  # taken from the end
        self.references = [0] * num_blocks

    def allocate(self) -> int:
        """A free block, with one reader.

        Raises: PoolExhausted if there is none.
        """
        if not self.free:
            raise PoolExhausted(f"all {len(self.references)} blocks are in use")
        block = self.free.pop()
        self.references[block] = 1
        return block

    @checked
    def share(self, block: NonNegativeInt) -> None:
        """Count one more reader of a block in use.

        Raises: TypeError or ValueError for a block that is not in use.
        """
        self._check_in_use(block)
        self.references[block] += 1

    @checked
    def release(self, block: NonNegativeInt) -> bool:
        """Count one reader less; return whether the block is free now.

        Raises: TypeError or ValueError for a block that is not in use: it would be free twice.
        """
        self._check_in_use(block)
        self.references[block] -= 1
        if not self.references[block]:
            self.free.append(block)
        return not self.references[block]

    def _check_in_use(self, block: int) -> None:
        if block >= len(self.references) or not self.references[block]:
            raise argument_error(ValueError, "block", block, "a block in use")


class BlockManager:
    """The block tables of sequences in one pool: they grow, fork, share prefixes, and free their blocks.

    A block that several sequences read is never written: who writes copies it first. copy(old, new) must
    copy what block `old` holds to block `new`.

    Raises: TypeError or ValueError that name the argument; PoolExhausted, with nothing changed, if there
        are too few free blocks.
    Source: Kwon et al. 2023, sections 4.2 to 4.4.
    """

    @checked
    def __init__(
        self,
        num_blocks: PositiveInt,
        block_size: PositiveInt = 16,
        *,
        copy: Callable[[int, int], None],
    ) -> None:
        self.pool, self.block_size, self.copy = BlockPool(num_blocks), block_size, copy
        # All tokens so far -> the block of the last ones, and the other way round.
        self.known: dict[tuple[int, ...], int] = {}
        self.tokens_of: dict[int, tuple[int, ...]] = {}

    @checked
    def start(self, tokens: Sequence[TokenID] = ()) -> BlockTable:
        """A new sequence; of these tokens it shares all full blocks that are known from the first on.

        At least one token is left to compute, since its logits are wanted.
        """
        table = BlockTable()
        for stop in range(self.block_size, len(tokens), self.block_size):
            block = self.known.get(tuple(tokens[:stop]))
            if block is None:
                break
            self.pool.share(block)
            table.blocks.append(block)
            table.length = stop
        return table

    @checked
    def remember(self, table: BlockTable, tokens: Sequence[TokenID]) -> None:
        """Let later sequences that begin with these tokens share the full blocks of this one."""
        for stop in range(self.block_size, min(len(tokens), table.length) + 1, self.block_size):
            block, prefix = table.blocks[stop // self.block_size - 1], tuple(tokens[:stop])
            if prefix not in self.known and block not in self.tokens_of:
                self.known[prefix], self.tokens_of[block] = block, prefix

    @checked
    def fork(self, table: BlockTable) -> BlockTable:
        """A second sequence with the same tokens, in the same blocks."""
        for block in table.blocks:
            self.pool.share(block)
        return BlockTable(list(table.blocks), table.length)

    @checked
    def num_needed(self, tables: Sequence[BlockTable], new: Sequence[NonNegativeInt]) -> int:
        """How many free blocks `grow` would take."""
        fresh, written = 0, Counter()
        for table, count in zip(tables, new, strict=True):
            fresh += self._num_blocks(table.length + count) - len(table.blocks)
            if count and table.length % self.block_size:
                written[table.blocks[-1]] += 1
        shared = ((self.pool.references[block], times) for block, times in written.items())
        return fresh + sum(min(times, readers - 1) for readers, times in shared)

    @checked
    def grow(self, tables: Sequence[BlockTable], new: Sequence[NonNegativeInt]) -> None:
        """Make room for `new` more tokens of each sequence, in blocks that no other one reads."""
        needed = self.num_needed(tables, new)
        if needed > len(self.pool.free):
            some = f"{len(self.pool.free)} of {len(self.pool.references)} blocks are free"
            raise PoolExhausted(f"{needed} blocks of {self.block_size} tokens needed, {some}")
        for table, count in zip(tables, new, strict=True):
            if count and table.length % self.block_size:
                table.blocks[-1] = self._own(table.blocks[-1])
            table.length += count
            while len(table.blocks) < self._num_blocks(table.length):
                table.blocks.append(self.pool.allocate())

    @checked
    def truncate(self, table: BlockTable, length: NonNegativeInt) -> None:
        """Forget all tokens after the first `length`, and free the blocks that hold no others."""
        if length > table.length:
            raise argument_error(ValueError, "length", length, f"at most {table.length}")
        while len(table.blocks) > self._num_blocks(length):
            block = table.blocks.pop()
            if self.pool.release(block):
                self._forget(block)
        table.length = length

    def _own(self, block: int) -> int:
        """A block with the same tokens that may be written: itself, or a copy if others read it."""
        if self.pool.references[block] == 1:
            self._forget(block)  # other tokens will stand in it
            return block
        new = self.pool.allocate()
        self.copy(block, new)
        self.pool.release(block)
        return new

    def _forget(self, block: int) -> None:
        self.known.pop(self.tokens_of.pop(block, ()), None)

    def _num_blocks(self, length: int) -> int:
        return -(-length // self.block_size)
