"""The famous mistakes with global tokens and random blocks: a key counted twice, a row that is still local."""

from __future__ import annotations

import torch

from ..masks.spec import textbook as masked_softmax
from ..mistakes import Formula, mistake

# --- Longformer -----------------------------------------------------------------------------------


class LongformerFormula(Formula):
    """The right formula on dense matrices, cut into the steps that the mutants replace one at a time."""

    def __call__(
        self, query, key, value, global_query, global_key, global_value, is_global, *, window,
        key_mask=None, scale=None,
    ):  # fmt: skip
        """The rows of local queries and those of global ones, by their own projections."""
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        real = torch.ones_like(is_global) if key_mask is None else key_mask  # B L
        near = self.near(is_global.shape[1], window) & real[:, None]  # B L L
        local = self.local(query @ key.mT * scale, value, near, self.global_keys(is_global, real))
        rows = self.global_rows(
            (query, key, value), (global_query, global_key, global_value), real, window, scale
        )
        return rows.where(self.chosen(is_global, real)[:, None, :, None], local)

    def chosen(self, is_global, real):
        """The global tokens; padding is none."""
        return is_global & real

    def global_keys(self, is_global, real):
        """The tokens that every local query reads."""
        return self.chosen(is_global, real)

    def local(self, scores, value, near, chosen):
        """One softmax, in which a key that stands twice counts twice."""
        counts = self.counts(near, chosen)[:, None].to(scores)  # B 1 L L
        scores = scores + counts.clamp(min=1).log()
        return masked_softmax(scores, (counts > 0).expand_as(scores)) @ value

    def counts(self, near, chosen):
        """How often each key stands in the softmax of each local query: once, in the window or as a global one."""
        return near | chosen[:, None]

    def near(self, length, window):
        """The keys fewer than `window` steps away."""
        ids = torch.arange(length)
        return (ids[:, None] - ids).abs() < window

    def global_rows(self, local, of_global, real, window, scale):
        """All real tokens, by the global projections; only the rows of global tokens are used."""
        query, key, value = of_global
        scores = query @ key.mT * scale
        return masked_softmax(scores, self.row_mask(scores, real, window)) @ value

    def row_mask(self, scores, real, window):
        """Which keys a global query attends to."""
        return real[:, None, None].expand_as(scores)


@mistake(
    "global queries use the local projections",
    rejected_by="a global token reads by its own projections",
    symptom="The model runs, and half of its attention weights never change: no gradient reaches the global "
    "query, key and value.",
    cause="A global token is given a full row of the usual attention. Longformer has a second query, key and "
    "value for it.",
    of="longformer_attention",
)
class LocalProjections(LongformerFormula):
    def global_rows(self, local, of_global, real, window, scale):
        return super().global_rows(local, local, real, window, scale)


@mistake(
    "global attention never on",
    rejected_by="a global token reads by its own projections",
    symptom="Long documents are no better than with a window alone, and no error is raised.",
    cause="The mask marks global tokens with a 2, and a function on the way inverts it to true and false: 1 and "
    "2 become the same.",
    seen="allenai/longformer issues 254 and 28; in 28 the global parameters that add nothing to the loss gave it away",
    of="longformer_attention",
)
class NeverGlobal(LongformerFormula):
    def chosen(self, is_global, real):
        return torch.zeros_like(is_global)


@mistake(
    "a global token's row is still windowed",
    rejected_by="a global token reads every token",
    symptom="A question token does not see the text it is a question about, only its neighbors.",
    cause="The window mask is applied to all rows, those of the global tokens included.",
    of="longformer_attention",
)
class RowWindowed(LongformerFormula):
    def row_mask(self, scores, real, window):
        return super().row_mask(scores, real, window) & self.near(scores.shape[-1], window)


@mistake(
    "a global key inside the window counts twice",
    rejected_by="among equal scores each key counts once",
    symptom="Right as long as the global tokens are far away; near them they get too much weight.",
    cause="Window and global tokens are two lists of keys. A global token that is near stands in both.",
    of="longformer_attention",
)
class CountedTwice(LongformerFormula):
    def counts(self, near, chosen):
        return near.int() + chosen[:, None].int()


@mistake(
    "window and global tokens in two softmaxes",
    rejected_by="the weights sum to 1",
    symptom="Outputs of local tokens are up to twice as large as they should be.",
    cause="Each part is normalized by itself and the results are added. There is one softmax over both.",
    of="longformer_attention",
)
class TwoSoftmaxes(LongformerFormula):
    def local(self, scores, value, near, chosen):
        parts = (near & ~chosen[:, None], chosen[:, None].expand_as(near))  # B L L
        return sum(
            masked_softmax(scores, each[:, None].expand_as(scores)) @ value for each in parts
        )


@mistake(
    "the window counted over both sides",
    rejected_by="among equal scores each key counts once",
    symptom="A converted model is slightly wrong everywhere: it attends to half as many neighbors.",
    cause="A window of keys on each side is read as the number of keys on both sides together.",
    of="longformer_attention",
)
class HalfWindow(LongformerFormula):
    def near(self, length, window):
        return super().near(length, (window + 1) // 2)


@mistake(
    "padding in the row of a global token",
    rejected_by="padding does nothing",
    symptom="The output at the classification token changes with the length of the longest neighbor in the batch.",
    cause="The padding mask is applied to the windows only.",
    of="longformer_attention",
)
class PaddingInGlobalRow(LongformerFormula):
    def row_mask(self, scores, real, window):
        return torch.ones_like(scores, dtype=torch.bool)


@mistake(
    "padding read as a global token",
    rejected_by="padding does nothing",
    symptom="A padded sequence gives other numbers than the same sequence alone.",
    cause="A token may be marked global and be padding, and the global part has no padding mask.",
    of="longformer_attention",
)
class GlobalPadding(LongformerFormula):
    def global_keys(self, is_global, real):
        return is_global


@mistake(
    "the first sequence's global tokens for all",
    rejected_by="a sequence is the same alone",
    symptom="Right with a batch of one.",
    cause="Global positions are read from the first sequence, so that every sequence must have the same ones.",
    seen="allenai/longformer issue 5, as a limitation of its first version",
    of="longformer_attention",
)
class FirstForAll(LongformerFormula):
    def chosen(self, is_global, real):
        return is_global[:1].expand_as(is_global) & real


@mistake(
    "the missing global tokens are token 0",
    rejected_by="a sequence is the same alone",
    symptom="In a batch whose sequences have different numbers of global tokens, token 0 gets too much weight.",
    cause="The list of global positions is padded with 0, and the padding is not masked.",
    of="longformer_attention",
)
class MissingAreFirst(LongformerFormula):
    def counts(self, near, chosen):
        counts, of_each = super().counts(near, chosen).int(), chosen.sum(-1)  # B L L, B
        if counts.numel():
            counts[..., 0] += (of_each.amax() - of_each)[:, None]
        return counts


# --- BigBird --------------------------------------------------------------------------------------


class BigBirdFormula(Formula):
    """The right formula on dense matrices, cut into the steps that the mutants replace one at a time."""

    def __call__(
        self, query, key, value, random_blocks, *, block_size, key_mask=None, scale=None
    ):  # fmt: skip
        """A softmax in which each key counts as often as its block is read."""
        length, scale = query.shape[2], query.shape[-1] ** -0.5 if scale is None else scale
        num_blocks = -(-length // block_size)
        counts = self.counts(random_blocks, num_blocks).to(query)  # H n n
        of_token = torch.arange(length) // block_size
        counts = counts[:, of_token][:, :, of_token]  # H L L
        allowed = (counts > 0) & (True if key_mask is None else key_mask[:, None, None])
        scores = query @ key.mT * scale + counts.clamp(min=1).log()
        return self.weights(scores, allowed.expand_as(scores), block_size) @ value

    def weights(self, scores, allowed, block_size):
        """The softmax over the keys that are read."""
        return masked_softmax(scores, allowed)

    def counts(self, random_blocks, num_blocks):
        """How often each block reads each other one: once or not at all."""
        return self.read(random_blocks, num_blocks).clamp(max=1)

    def read(self, random_blocks, num_blocks):
        """The same, and a block that stands in several lists counts several times."""
        own = torch.arange(num_blocks)
        counts = ((own[:, None] - own).abs() <= 1).long()  # n n
        counts = counts.repeat(len(random_blocks), 1, 1)  # H n n
        counts[:, 2:, :1] += 1
        counts[:, :-2, -1:] += 1
        self.add_random(counts, self.chosen(random_blocks))
        self.globals(counts)
        return counts

    def chosen(self, random_blocks):
        """The random blocks that are read."""
        return random_blocks

    def add_random(self, counts, random_blocks):
        """Row i of the random blocks is that of block i + 1."""
        for h, i, k in (
            torch.cartesian_prod(*map(torch.arange, random_blocks.shape)).view(-1, 3).tolist()
        ):
            if random_blocks[h, i, k] >= 0:
                counts[h, i + 1, random_blocks[h, i, k]] += 1

    def globals(self, counts):
        """The first and the last block read all."""
        counts[:, :1] = counts[:, -1:] = 1


@mistake(
    "evaluation reads block 0 in place of the random blocks",
    rejected_by="a random block is read",
    symptom="Deterministic in evaluation, and another model than in training: the first block, which all blocks "
    "read anyway, counts once more for each random block.",
    cause="Random blocks are sampled in training only. In evaluation their numbers keep the zeros that the list "
    "was made of.",
    seen="huggingface/transformers issue 23055 and pull request 23056",
    of="big_bird_attention",
)
class BlockZero(BigBirdFormula):
    def counts(self, random_blocks, num_blocks):
        return self.read(random_blocks, num_blocks)

    def chosen(self, random_blocks):
        return torch.zeros_like(random_blocks)


@mistake(
    "a random block that is a neighbor counts twice",
    rejected_by="among equal scores each key counts once",
    symptom="Right for most blocks; where chance picks a neighbor, it gets twice its weight.",
    cause="The lists of neighbors, global blocks and random blocks are concatenated, and a block may be in two.",
    of="big_bird_attention",
)
class NeighborTwice(BigBirdFormula):
    def counts(self, random_blocks, num_blocks):
        return self.read(random_blocks, num_blocks)


@mistake(
    "no random blocks",
    rejected_by="a random block is read",
    symptom="A model that was trained with random blocks gets worse when it is run.",
    cause="Randomness is switched off in evaluation, like dropout, and the pattern loses a part.",
    of="big_bird_attention",
)
class NoRandom(BigBirdFormula):
    def add_random(self, counts, random_blocks):
        pass


@mistake(
    "random blocks of the block before",
    rejected_by="a random block is read",
    symptom="Right shapes; each block reads the random blocks of its neighbor.",
    cause="The list has no row for block 0, and row i is taken for block i.",
    of="big_bird_attention",
)
class RowOff(BigBirdFormula):
    def chosen(self, random_blocks):
        return random_blocks.roll(-1, 1)


@mistake(
    "one head's random blocks for all",
    rejected_by="a random block is read",
    symptom="Right with one head.",
    cause="The list of the first head is used for every head.",
    of="big_bird_attention",
)
class OneHead(BigBirdFormula):
    def chosen(self, random_blocks):
        return random_blocks[:1].expand_as(random_blocks)


@mistake(
    "the last block is not global",
    rejected_by="the first and the last block read every token",
    symptom="Tokens at the end see their neighborhood only.",
    cause="Global is taken to mean the first block; the paper's blocked form has one at each end.",
    of="big_bird_attention",
)
class LastIsLocal(BigBirdFormula):
    def globals(self, counts):
        counts[:, :1] = 1


@mistake(
    "keys beyond the end",
    rejected_by="the weights sum to 1",
    symptom="Right for lengths that the block size divides.",
    cause="The last block is filled up with zeros, whose score is 0, not minus infinity.",
    of="big_bird_attention",
)
class BeyondTheEnd(BigBirdFormula):
    def weights(self, scores, allowed, block_size):
        missing = -scores.shape[-1] % block_size
        zeros = scores.new_zeros(*scores.shape[:-1], missing)
        scores = torch.cat((scores, zeros), -1)
        allowed = torch.cat((allowed, torch.ones_like(zeros, dtype=torch.bool)), -1)
        return masked_softmax(scores, allowed)[..., : scores.shape[-1] - missing]
