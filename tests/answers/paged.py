"""Attention to pages sequence by sequence, and without an index; block tables of other makes."""

import torch
from torch.nn import functional

from answers import right, wrong
from tested_transformer.functional.paged import paged_attention
from tested_transformer.layers.block_manager import BlockManager, BlockTable

right("paged_attention")(paged_attention)
right("block_tables")(BlockManager)


def one_by_one(
    query, key_pages, value_pages, block_table, lengths, last=lambda length, count: length
):
    """Each sequence on its own, its pages side by side, by torch's attention."""
    outputs = []
    for q, blocks, length in zip(query, block_table, lengths.tolist(), strict=True):
        key, value = (
            p[blocks].flatten(0, 1)[:length].transpose(0, 1) for p in (key_pages, value_pages)
        )
        ends = last(length, q.shape[1]) - q.shape[1] + torch.arange(q.shape[1])
        allowed = torch.arange(length) <= ends[:, None]
        none = ~allowed.any(-1, keepdim=True)
        if not length:
            outputs.append(q.sum() * 0 + value_pages.new_zeros(*q.shape[:2], value_pages.shape[3]))
            continue
        key, value = (t.repeat_interleave(len(q) // len(t), 0) for t in (key, value))
        found = functional.scaled_dot_product_attention(q, key, value, attn_mask=allowed | none)
        outputs.append(found.masked_fill(none, 0.0))
    empty = query[..., :1].expand(*query.shape[:3], value_pages.shape[3])
    return torch.stack(outputs) if outputs else empty * 1.0


@right("paged_attention", "sequence by sequence, torch's attention")
def by_torch(query, key_pages, value_pages, block_table, lengths):
    return one_by_one(query, key_pages, value_pages, block_table, lengths)


@right("paged_attention", "einsum over blocks, with a table of one-hot rows")
def by_one_hot(query, key_pages, value_pages, block_table, lengths):
    """The table as a matrix product: what page tables are, without an index."""
    size, repeats = key_pages.shape[1], query.shape[1] // key_pages.shape[2]
    chosen = functional.one_hot(block_table, len(key_pages)).to(query)  # B T N
    key, value = (
        torch.einsum("btn,npgd->bgtpd", chosen, pages).flatten(2, 3).repeat_interleave(repeats, 1)
        for pages in (key_pages, value_pages)
    )
    scores = query @ key.mT / query.shape[-1] ** 0.5
    ends = lengths[:, None] - query.shape[2] + torch.arange(query.shape[2])
    allowed = (torch.arange(block_table.shape[1] * size) <= ends[..., None])[:, None]  # B 1 L S
    scores = scores.masked_fill(~allowed, float("-inf")).masked_fill(~allowed.any(-1, True), 0.0)
    return (scores.softmax(-1) * allowed) @ value


@right("block_tables")
class BySearch(BlockManager):
    """No reference counts: who reads a block is looked up in the tables."""

    def __init__(self, num_blocks, block_size=16, *, copy):
        super().__init__(num_blocks, block_size, copy=copy)
        self.tables = []

    def start(self, tokens=()):
        self.tables.append(super().start(tokens))
        return self.tables[-1]

    def fork(self, table):
        self.tables.append(super().fork(table))
        return self.tables[-1]

    def _own(self, block):
        readers = sum(table.blocks.count(block) for table in self.tables)
        self.pool.references[block] = readers
        return super()._own(block)


@right("block_tables")
class ByHash(BlockManager):
    """A block's key is the hash of its tokens and of the key before, as vLLM's."""

    def _keys(self, tokens):
        keys, key = [], None
        for stop in range(self.block_size, len(tokens) + 1, self.block_size):
            key = (key, *tokens[stop - self.block_size : stop])
            keys.append(key)
        return keys

    def start(self, tokens=()):
        table = BlockTable()
        for key in self._keys(tokens[:-1]):
            if key not in self.known:
                break
            self.pool.share(self.known[key])
            table.blocks.append(self.known[key])
            table.length += self.block_size
        return table

    def remember(self, table, tokens):
        for block, key in zip(table.blocks, self._keys(tokens[: table.length]), strict=False):
            if key not in self.known and block not in self.tokens_of:
                self.known[key], self.tokens_of[block] = block, key


# --- Wrong ----------------------------------------------------------------------------------------


@wrong("paged_attention", "the table is read modulo 64")
def modulo(query, key_pages, value_pages, block_table, lengths):
    return paged_attention(query, key_pages, value_pages, block_table % 64, lengths)


@wrong("paged_attention", "no causal mask in a chunk")
def no_mask(query, key_pages, value_pages, block_table, lengths):
    return one_by_one(
        query, key_pages, value_pages, block_table, lengths, lambda length, count: length + count
    )


@wrong("paged_attention", "the values are detached")
def detached(query, key_pages, value_pages, block_table, lengths):
    return paged_attention(query, key_pages, value_pages.detach(), block_table, lengths)


@wrong("paged_attention", "the slot within a block comes first")
def slot_first(query, key_pages, value_pages, block_table, lengths):
    order = torch.arange(key_pages.shape[1]).roll(1)
    return paged_attention(query, key_pages[:, order], value_pages[:, order], block_table, lengths)


@wrong("block_tables", "every block of a fork is copied, and too few are free")
class CopiesAll(BlockManager):
    def fork(self, table):
        new = BlockTable()
        self.grow([new], [table.length])
        for old, own in zip(table.blocks, new.blocks, strict=True):
            self.copy(old, own)
        return new


@wrong("block_tables", "a prefix of one block is never shared")
class FromTwoOn(BlockManager):
    def start(self, tokens=()):
        return super().start(tokens if len(tokens) > 2 * self.block_size else ())


@wrong("block_tables", "the copy keeps its reader of the old block")
class KeepsReader(BlockManager):
    def _own(self, block):
        if self.pool.references[block] == 1:
            return super()._own(block)
        new = self.pool.allocate()
        self.copy(block, new)
        return new
