"""The famous mistakes with pages: of the attention that reads them, and of the tables."""

from __future__ import annotations

import torch

from ...layers.block_manager import BlockManager, BlockPool, BlockTable
from ..masks.spec import textbook as masked_softmax
from ..mistakes import Formula, mistake


class PagedFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    def __call__(self, query, key_pages, value_pages, block_table, lengths):
        """Gather, mask, attend; token t of a sequence stands in column t."""
        most = int(lengths.max()) if len(lengths) else 0
        token_ids = torch.arange(most).expand(len(lengths), most)  # B S
        token_ids = token_ids.clamp(max=(lengths - 1).clamp(min=0)[:, None])
        slots = self.slots(block_table, token_ids, lengths, key_pages.shape[1], query.shape[2])
        key, value = (self.gather(pages, slots) for pages in (key_pages, value_pages))  # B G S d
        repeats = query.shape[1] // key.shape[1]
        key, value = (t.repeat_interleave(repeats, 1) for t in (key, value))  # B H S d
        scores = query @ key.mT / query.shape[-1] ** 0.5  # B H L S
        allowed = self.allowed(query.shape[2], most, lengths)[:, None].expand_as(scores)
        return masked_softmax(scores, allowed) @ value

    def slots(self, table, token_ids, lengths, size, queries):
        """Where in the pool the tokens stand."""
        return self.blocks(table, token_ids // size, lengths, size) * size + token_ids % size

    def blocks(self, table, numbers, lengths, size):
        """The blocks of these numbers in the table."""
        return table.gather(1, numbers)

    def gather(self, pages, slots):
        """What stands there."""
        return pages.flatten(0, 1)[slots].transpose(1, 2)

    def allowed(self, queries, keys, lengths):
        """The last query is that of the last token."""
        last = (lengths[:, None] - queries + torch.arange(queries))[..., None]  # B L 1
        return torch.arange(keys) <= last  # B L S


def contiguous(token_ids, most, pool):
    """Slots as if each sequence stood in one piece, one after the other."""
    return (torch.arange(len(token_ids))[:, None] * most + token_ids) % pool


@mistake(
    "no block table passed",
    rejected_by="shuffled pages change nothing",
    symptom="The prompt that hits the prefix cache gets keys of other sequences; without a hit all is right.",
    cause="The kernel gets the whole pool and no table, and reads it as if it were contiguous.",
    seen="tanishqkumar/ssd issue 23",
    of="paged_attention",
)
class NoTable(PagedFormula):
    def slots(self, table, token_ids, lengths, size, queries):
        return contiguous(token_ids, table.shape[1] * size, (int(table.max()) + 1) * size)


@mistake(
    "the table is ignored for a chunk",
    rejected_by="shuffled pages change nothing",
    symptom="Decoding is right; prompts in several chunks are not.",
    cause="The path for several queries takes the table as an argument and does not use it.",
    seen="golang-design/accel issue 10",
    of="paged_attention",
)
class NoTableForChunks(NoTable):
    def slots(self, table, token_ids, lengths, size, queries):
        if queries > 1:
            return super().slots(table, token_ids, lengths, size, queries)
        return PagedFormula.slots(self, table, token_ids, lengths, size, queries)


@mistake(
    "past the table stands its last block",
    rejected_by="every token counts",
    symptom="Right while the last block is full; else its tokens are read in the block before.",
    cause="length // block_size blocks, and what lies past the table is clamped to its last entry.",
    seen="EricLBuehler/mistral.rs pull request 552",
    of="paged_attention",
)
class LastBlockTwice(PagedFormula):
    def blocks(self, table, numbers, lengths, size):
        return table.gather(1, numbers.clamp(max=(lengths // size - 1).clamp(min=0)[:, None]))


@mistake(
    "the first token of a new block is lost",
    rejected_by="every token counts",
    symptom="Wrong for one length in block_size: 1, 17, 33 ... tokens, and right in nearly every test.",
    cause="The number of blocks is counted before the new token is added, and rounded up.",
    of="paged_attention",
)
class OneBlockTooFew(PagedFormula):
    def blocks(self, table, numbers, lengths, size):
        count = (lengths - 1 + size - 1) // size
        return table.gather(1, numbers.clamp(max=(count - 1).clamp(min=0)[:, None]))


@mistake(
    "a block too many when the last one is full",
    rejected_by="shuffled pages change nothing",
    symptom="Every block_size-th step reads a whole block of zeros, and, once blocks are used again, of old keys.",
    cause="The next block is in the table already, and the length is computed from the number of blocks.",
    seen="pegainfer-project/pegainfer issue 291",
    of="paged_attention",
)
class OneBlockTooMany(PagedFormula):
    def __call__(self, query, key_pages, value_pages, block_table, lengths):
        """Take a full last block for an empty one."""
        size, fill = key_pages.shape[1], torch.zeros_like(block_table[:, :1])
        more = size * ((lengths > 0) & (lengths % size == 0))
        table = torch.cat([block_table, fill], 1)
        return super().__call__(query, key_pages, value_pages, table, lengths + more)


@mistake(
    "block IDs truncated",
    rejected_by="shuffled pages change nothing",
    symptom="Right for hours, and garbage from the moment when the pool hands out a large block ID.",
    cause="The kernel keeps the low bits of a block ID: 16 of them in the wild, 8 here.",
    seen="ROCm/ATOM issue 702",
    of="paged_attention",
)
class FewBits(PagedFormula):
    def blocks(self, table, numbers, lengths, size):
        return table.gather(1, numbers) & 0xFF


@mistake(
    "short sequences padded with real keys",
    rejected_by="only the sequence's own slots are read",
    symptom="The longest sequence of a batch is right; the others attend to what is left in their blocks.",
    cause="The mask is made for the longest sequence, and no one tells the lengths of the others.",
    of="paged_attention",
)
class OneLengthForAll(PagedFormula):
    def __call__(self, query, key_pages, value_pages, block_table, lengths):
        """Attend to as many slots as the longest has."""
        longest = lengths.max().expand(len(lengths)) if len(lengths) else lengths
        return super().__call__(query, key_pages, value_pages, block_table, longest)


@mistake(
    "one causal mask for sequences of all lengths",
    rejected_by="the future stays hidden",
    symptom="Decoding is right. In a chunk, short sequences attend to their future.",
    cause="The mask is aligned with the last key of the longest sequence.",
    of="paged_attention",
)
class LongestMask(PagedFormula):
    def allowed(self, queries, keys, lengths):
        causal = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        real = torch.arange(keys) < lengths[:, None, None]
        return causal & real


@mistake(
    "heads and slots exchanged",
    rejected_by="every token counts",
    symptom="Shapes fit, and no error: a head reads its neighbor's key of another token.",
    cause="Pages of layout (block, slot, head) are viewed as (block, head, slot), as another kernel has them.",
    of="paged_attention",
)
class HeadsAndSlots(PagedFormula):
    def gather(self, pages, slots):
        blocks, size, groups, width = pages.shape
        seen = pages.reshape(blocks, groups, size, width).transpose(1, 2)
        return super().gather(seen, slots)


# --- The tables -----------------------------------------------------------------------------------


@mistake(
    "written without a copy",
    rejected_by="a sequence reads what was written for it",
    symptom="Two requests with the same prompt go on with each other's words, mid-block.",
    cause="A block that is not full has two readers, and one of them appends to it in place.",
    seen="Avarok-Cybersecurity/atlas issue 1193",
    of="block_tables",
)
class NoCopy(BlockManager):
    def _own(self, block):
        return block


class FreesAtOnce(BlockPool):
    """A pool that does not count readers."""

    def release(self, block):
        self.free.append(block)
        self.references[block] = 0
        return True


@mistake(
    "freed twice",
    rejected_by="a sequence reads what was written for it",
    symptom="Under load, two requests write to the same block, long after the bug.",
    cause="Each reader puts the block on the free list as it ends; it is handed out as often.",
    seen="LMCache/LMCache issue 5005",
    of="block_tables",
)
class FreedTwice(BlockManager):
    def __init__(self, num_blocks, block_size=16, *, copy):
        super().__init__(num_blocks, block_size, copy=copy)
        self.pool = FreesAtOnce(num_blocks)

    def fork(self, table):
        for block in table.blocks:
            self.pool.references[block] += 1
        return BlockTable(list(table.blocks), table.length)


@mistake(
    "blocks never come back",
    rejected_by="blocks that nobody reads are free",
    symptom="The pool fills up over hours, and then no request can start.",
    cause="Requests that end drop their table, and the readers of its blocks are not counted down.",
    seen="jjang-ai/vmlx pull request 68",
    of="block_tables",
)
class NeverBack(BlockManager):
    def truncate(self, table, length):
        del table.blocks[-(-length // self.block_size) :]
        table.length = length


@mistake(
    "a prefix known by its last block",
    rejected_by="a sequence reads what was written for it",
    symptom="A paragraph that occurs in two prompts gets the keys of the first prompt, positions included.",
    cause="The key of a block is made of its own tokens; a key depends on all tokens before it.",
    seen="vllm-project/aibrix issue 2329",
    of="block_tables",
)
class OwnTokensOnly(BlockManager):
    def start(self, tokens=()):
        table, size = BlockTable(), self.block_size
        for stop in range(size, len(tokens), size):
            block = self.known.get(tuple(tokens[stop - size : stop]))
            if block is None:
                break
            self.pool.share(block)
            table.blocks.append(block)
            table.length = stop
        return table

    def remember(self, table, tokens):
        size = self.block_size
        for stop in range(size, min(len(tokens), table.length) + 1, size):
            block, own = table.blocks[stop // size - 1], tuple(tokens[stop - size : stop])
            if own not in self.known and block not in self.tokens_of:
                self.known[own], self.tokens_of[block] = block, own


@mistake(
    "a freed block stays known",
    rejected_by="a sequence reads what was written for it",
    symptom="A prompt seen an hour ago hits blocks in which other sequences have written since.",
    cause="The block goes back to the pool, and its entry stays in the index of prefixes.",
    seen="ovg-project/kvcached issue 362",
    of="block_tables",
)
class StaysKnown(BlockManager):
    def _forget(self, block):
        pass
