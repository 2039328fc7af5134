"""The cache in pages: keys and values of all sequences in the blocks of one pool, see `BlockManager`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..bounds import AtLeast, AtMost, Below, NonNegativeInt, PositiveInt, TokenID
from ..errors import argument_error
from ..functional.paged import aligned_token_ids, gather_pages, token_slots
from ..shapes import checked
from ..special_tokens import pad
from .block_manager import BlockManager, BlockTable
from .cache import DecoderCache, check_no_gradient

__all__ = ["PagedCache"]


class PagedCache(DecoderCache):
    """A DecoderCache in pages: one block table per sequence, for all layers.

    Memory for num_blocks blocks is set aside at the first call, and never more. Sequences of a batch have
    lengths of their own: padding, which must be on the left of a chunk, is not stored. A copy of a
    sequence (`reorder`), and a prefix that another one has already (`add`), takes no memory until one of
    the two goes on differently.

    Shapes: real (B, S), S the largest length; the tokens of each sequence are the last True ones.
    Raises: TypeError or ValueError that name the argument; PoolExhausted, with nothing changed.
    Source: Kwon et al. 2023, section 4.
    """

    @checked
    def __init__(
        self, num_layers: PositiveInt, *, num_blocks: PositiveInt, block_size: PositiveInt = 16
    ) -> None:
        super().__init__(num_layers, own=partial(PagedLayer, self))
        self.manager = BlockManager(num_blocks, block_size, copy=self._copy)
        self.tables: list[BlockTable] = []
        self.padded, self.num_chunks = True, 0
        self.chunk: Bool[Tensor, "B L"] | None = None  # which tokens of the last chunk are real
        self.slots: Int[Tensor, "B S"] | None = None  # of all tokens so far, in the pool

    @property
    def lengths(self) -> list[int]:
        """The tokens of each sequence."""
        return [table.length for table in self.tables]

    @checked
    def add(self, tokens: Sequence[TokenID] = ()) -> int:
        """A new last sequence; return how many of its tokens are here already, and need not be fed."""
        self.tables.append(self.manager.start(tokens))
        self._compact()
        return self.tables[-1].length

    @checked(B="self.real.shape.0", like="self.real")
    def extend(self, real: Bool[Tensor, "B L"]) -> Bool[Tensor, "B S"]:
        """Find room for a new chunk; return which columns are real tokens, of all so far."""
        new = real.sum(1)  # B
        if not torch.equal(real, aligned_token_ids(new, real.shape[1]) >= 0):
            raise argument_error(ValueError, "real", "padding after a token", "it on the left only")
        tables = self.tables or [BlockTable() for _ in real]
        self.manager.grow(tables, new.tolist())
        self.tables = tables
        self._update(least=self.length + real.shape[1], device=real.device)
        self.chunk, self.num_chunks = real, self.num_chunks + 1
        return self.real

    @checked(like="self.real")
    def reorder(self, rows: Annotated[Int[Tensor, " N"], AtLeast(0), Below("self.batch")]) -> None:
        """Keep these sequences of the batch, in this order; nothing is copied.

        Raises: TypeError or ValueError for rows that are no such numbers.
        """
        if self.real is None:
            raise RuntimeError("the cache is empty: decode something first")
        old, self.tables = self.tables, [self.manager.fork(self.tables[r]) for r in rows.tolist()]
        for table in old:
            self.manager.truncate(table, 0)
        for layer in self.layers:
            if layer.cross.length:
                layer.cross.reorder(rows)
        self._compact()

    @checked
    def truncate(self, length: Annotated[int, AtLeast(0), AtMost("self.length")]) -> None:
        """Forget the columns after the first `length`: the same number of tokens of each sequence."""
        for table in self.tables:
            self.manager.truncate(table, max(0, table.length - (self.length - length)))
        self._compact(least=length)

    def _compact(self, least: int = 0) -> None:
        """As few columns as the longest sequence has tokens, between two chunks."""
        self._update(least)
        for layer in self.layers:
            layer.own.length = self.length

    def _update(self, least: int = 0, device: torch.device | None = None) -> None:
        """What every layer needs of the tables, computed once."""
        if device is None:
            device = None if self.real is None else self.real.device
        lengths = torch.tensor(self.lengths, dtype=torch.long, device=device)
        num_keys = max([least, *self.lengths])
        token_ids = aligned_token_ids(lengths, num_keys)  # B S
        self.real = token_ids >= 0 if self.tables else None
        blocks = [table.blocks or [0] for table in self.tables]
        table = pad(blocks).to(lengths)  # B T
        self.slots = token_slots(table, token_ids.clamp(min=0), self.manager.block_size)

    def _copy(self, old: int, new: int) -> None:
        for layer in self.layers:
            layer.own.copy(old, new)


class PagedLayer:
    """The pages of one layer, an AttentionCache: `append` writes new tokens and gathers all of them.

    Shapes: keys (B, G, S, d), values (B, G, S, dv); key_pages (N, P, G, d), value_pages (N, P, G, dv).
    Source: Kwon et al. 2023, section 4.1.
    """

    fixed = False

    def __init__(self, cache: PagedCache) -> None:
        self.cache, self.length, self.num_chunks = cache, 0, 0
        self.key_pages: Tensor | None = None  # N P G d
        self.value_pages: Tensor | None = None  # N P G dv

    @property
    def nbytes(self) -> int:
        """Bytes set aside, used or not."""
        return 0 if self.key_pages is None else self.key_pages.nbytes + self.value_pages.nbytes

    @property
    def pending(self) -> int | None:
        """Tokens of the chunk for which there is room and which this layer has not seen, if any."""
        is_new = self.num_chunks < self.cache.num_chunks
        return self.cache.chunk.shape[1] if is_new else None

    @checked(
        like="self.key_pages", B="self.cache.batch", L="self.pending", G="self.key_pages.shape.2",
        d="self.key_pages.shape.3", dv="self.value_pages.shape.3",
    )  # fmt: skip
    def append(
        self, key: Float[Tensor, "B G L d"], value: Float[Tensor, "B G L dv"]
    ) -> tuple[Float[Tensor, "B G S d"], Float[Tensor, "B G S dv"]]:
        """Write a chunk to its pages; return all tokens so far, those of each sequence on the right.

        If the cache was not extended for this chunk, all of its tokens are real.

        Raises: TypeError or ValueError if the chunk does not fit, or a gradient would be lost.
        """
        check_no_gradient(key=key, value=value)
        if self.pending is None:
            shape = (key.shape[0], key.shape[2])
            self.cache.extend(torch.ones(shape, dtype=torch.bool, device=key.device))
        if self.key_pages is None:
            self.key_pages, self.value_pages = self._new_pages(key), self._new_pages(value)
        slots, length = self.cache.slots, key.shape[2]
        real = self.cache.chunk  # B L
        own = slots[:, slots.shape[1] - length :][real]  # as many as there are real tokens
        self.key_pages.flatten(0, 1)[own] = key.transpose(1, 2)[real]
        self.value_pages.flatten(0, 1)[own] = value.transpose(1, 2)[real]
        self.num_chunks, self.length = self.cache.num_chunks, self.cache.length
        return gather_pages(self.key_pages, slots), gather_pages(self.value_pages, slots)

    @checked
    def num_keys(self, new: NonNegativeInt) -> int:
        """How many keys `append` will return for a chunk of `new` tokens."""
        return self.cache.length + (new if self.pending is None else 0)

    def reorder(self, rows: Int[Tensor, " N"]) -> None:
        """Keep these sequences, in this order, in all layers."""
        self.cache.reorder(rows)

    def truncate(self, length: int) -> None:
        """Forget everything after the first `length` columns, in all layers."""
        self.cache.truncate(length)

    def copy(self, old: int, new: int) -> None:
        """Copy what one block holds to another."""
        for pages in (self.key_pages, self.value_pages):
            pages[new] = pages[old]

    def _new_pages(self, new: Float[Tensor, "B G L d"]) -> Float[Tensor, "N P G d"]:
        manager = self.cache.manager
        blocks = len(manager.pool.references)
        return new.new_zeros(blocks, manager.block_size, new.shape[1], new.shape[3])
