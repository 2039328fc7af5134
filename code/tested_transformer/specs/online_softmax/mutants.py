"""The famous mistakes of the online softmax and of tiled attention: the right loop, one step wrong."""

from __future__ import annotations

import math

import torch

from ..mistakes import Formula, Mutant, mistake


class Online(Formula):
    """The right loop over tiles of keys, cut into the steps that the mutants replace."""

    start = -math.inf

    def __call__(self, scores, value, tile):
        """The output and the log-sum-exp."""
        return self.over((self.load(scores, value, at, tile) for at in range(0, scores.shape[-1], tile)),
                         scores, value.shape[-1])  # fmt: skip

    def over(self, tiles, like, width):
        """Go through the tiles; `like` has the shape and dtype of the scores."""
        best = torch.full_like(like[..., 0] if like.shape[-1] else like.sum(-1), self.start)
        total, accumulator = torch.zeros_like(best), like.new_zeros(*best.shape, width)
        for scores, value in tiles:
            best, total, accumulator = self.step(best, total, accumulator, scores, value)
        return self.normalize(best, total, accumulator)

    def load(self, scores, value, at, tile):
        """One tile."""
        return scores[..., at : at + tile], value[..., at : at + tile, :]

    def step(self, best, total, accumulator, scores, value):
        """Take one tile in."""
        higher = self.higher(best, scores)
        safe = self.safe(higher)
        shrink = torch.exp(best - safe)
        weights = torch.exp(scores - safe[..., None])
        total = self.sum(total, shrink) + weights.sum(-1)
        accumulator = self.mix(accumulator, shrink) + weights @ value
        return higher, total, self.after(accumulator, total)

    def higher(self, best, scores):
        """The new maximum."""
        return torch.maximum(best, scores.amax(-1))

    def safe(self, best):
        """The maximum, 0 where nothing was seen."""
        return best.masked_fill(best == -math.inf, 0.0)

    def sum(self, total, shrink):
        """The old sum against the new maximum."""
        return total * shrink

    def mix(self, accumulator, shrink):
        """The old output against the new maximum."""
        return accumulator * shrink[..., None]

    def after(self, accumulator, total):
        """What happens to the output at the end of each tile: nothing."""
        return accumulator

    def normalize(self, best, total, accumulator):
        """Divide, and join the logarithm of the sum."""
        empty = total == 0
        total = total.masked_fill(empty, 1.0)
        return accumulator / total[..., None], self.lse(best, total).masked_fill(empty, math.inf)

    def lse(self, best, total):
        """The logarithm of the sum of exp(score)."""
        return best + total.log()


@mistake(
    "no running maximum",
    rejected_by="no overflow",
    symptom="inf / inf, NaN, as soon as a score passes 709 in float64, 88 in float32.",
    cause="exp(score) is summed as it is; nothing is subtracted.",
    seen="source notes, 002:28",
    of="online_softmax",
)
class NoMaximum(Online):
    start = 0.0

    def higher(self, best, scores):
        return best


@mistake(
    "the maximum of the tile alone",
    rejected_by="no overflow",
    symptom="Right, until a tile lies far below the one before it: exp(old - new) overflows.",
    cause="The new maximum is that of the tile; it must never fall: maximum(old, tile's).",
    of="online_softmax",
)
class MaximumOfTheTile(Online):
    def higher(self, best, scores):
        return scores.amax(-1)


@mistake(
    "a running maximum that starts at a finite number",
    rejected_by="no row is lost",
    symptom="A row whose scores all lie far below the start comes out as zeros, without a word.",
    cause="-100 or -50000 stands for -inf: every exponential against it underflows to 0.",
    seen="flashinfer issue 4267 (-50000 as the start and as the mask)",
    of="online_softmax",
)
class FiniteStart(Online):
    start = -100.0


@mistake(
    "the sum is not rescaled",
    rejected_by="the tile size changes nothing",
    symptom="Outputs too small wherever the maximum rose on the way.",
    cause="total += ... where total = total * exp(old - new) + ... is right.",
    of="online_softmax",
)
class SumNotRescaled(Online):
    def sum(self, total, shrink):
        return total


@mistake(
    "the output is not rescaled",
    rejected_by="the tile size changes nothing",
    symptom="Early keys weigh too much wherever the maximum rose on the way.",
    cause="The sum is rescaled when the maximum rises, the weighted sum of values is not.",
    of="online_softmax",
)
class OutputNotRescaled(Online):
    def mix(self, accumulator, shrink):
        return accumulator


@mistake(
    "rescaled the wrong way round",
    rejected_by="the tile size changes nothing",
    symptom="Early keys weigh far too much, the more the maximum rose after them.",
    cause="The old output is divided by exp(old - new); it must be multiplied.",
    seen="the paper of FlashAttention-2, algorithm 1, line 10: Dao-AILab/flash-attention issue 991",
    of="online_softmax",
)
class WrongWayRound(Online):
    def mix(self, accumulator, shrink):
        return accumulator / shrink.masked_fill(shrink == 0, 1.0)[..., None]


@mistake(
    "normalized in every tile",
    rejected_by="the tile size changes nothing",
    symptom="Right for one tile. With more, early keys are divided again and again.",
    cause="The output is divided by the sum inside the loop, and never multiplied back.",
    of="online_softmax",
)
class NormalizedInEveryTile(Online):
    def after(self, accumulator, total):
        return accumulator / total.masked_fill(total == 0, 1.0)[..., None]

    def normalize(self, best, total, accumulator):
        _, lse = super().normalize(best, total, accumulator)
        return accumulator, lse


@mistake(
    "minus infinity minus minus infinity",
    rejected_by="a row may begin hidden",
    symptom="NaN for every row whose first tile is hidden, and for fully masked rows.",
    cause="Before anything is seen the maximum is -inf, and -inf - (-inf) is NaN.",
    seen="vllm-project/vllm pull request 4405 (a window that hides a row's whole tile)",
    of="online_softmax",
)
class InfMinusInf(Online):
    def safe(self, best):
        return best


@mistake(
    "a log-sum-exp without the maximum",
    rejected_by="a shift moves the log-sum-exp alone",
    symptom="The output is right; the backward pass, which makes the weights again, is not.",
    cause="log(total) is stored; the sum was taken against the maximum: add it.",
    of="online_softmax",
)
class SumWithoutMaximum(Online):
    def lse(self, best, total):
        return total.log()


@mistake(
    "the last tile's padding is counted",
    rejected_by="the tile size changes nothing",
    symptom="Right when the tile divides the number of keys; else the weights sum to less than 1.",
    cause="The last tile is filled up with zeros, and exp(0 - maximum) is not 0.",
    seen="jax-ml/jax issue 27224 (right for multiples of the block only)",
    of="online_softmax",
)
class PaddingCounted(Online):
    def load(self, scores, value, at, tile):
        scores, value = super().load(scores, value, at, tile)
        missing = tile - scores.shape[-1]
        pad = torch.nn.functional.pad
        return pad(scores, (0, missing)), pad(value, (0, 0, 0, missing))


class Tiled(Formula):
    """The right two loops over blocks of queries and tiles of keys, cut into steps."""

    online = Online()

    def __call__(self, query, key, value, tile, causal):
        """The output and the log-sum-exp."""
        length, keys = query.shape[-2], key.shape[-2]
        output = query.new_zeros(*query.shape[:-1], value.shape[-1])
        lse = query.new_zeros(query.shape[:-1])
        for at in range(0, self.rows(length, tile), tile):
            block = slice(at, min(at + tile, length))
            q = query[..., block, :]
            row = torch.arange(block.start, block.stop)
            tiles = (
                self.tile(q, key, value, row, length, start, tile, causal)
                for start in range(0, self.end(at, tile, length, keys, causal), tile)
            )
            like = q.new_zeros(*q.shape[:-1], 1)
            output[..., block, :], lse[..., block] = self.online.over(tiles, like, value.shape[-1])
        return output, lse

    def rows(self, length, tile):
        """How many queries are answered."""
        return length

    def end(self, at, tile, length, keys, causal):
        """Where the keys end for a block."""
        return min(keys, max(0, at + tile + keys - length)) if causal else keys

    def tile(self, q, key, value, row, length, start, tile, causal):
        """The scores and values of one tile."""
        keys = key.shape[-2]
        k, v = self.load(key, start, tile), self.load(value, start, tile)
        col = torch.arange(start, start + k.shape[-2])
        scores = self.scores(q, k) * q.shape[-1] ** -0.5
        seen = self.seen(row, col, length, keys, tile, causal)
        return scores.masked_fill(~seen, -math.inf), v

    def load(self, tensor, start, tile):
        """The rows of a tile."""
        return tensor[..., start : start + tile, :]

    def scores(self, q, k):
        """All dot products."""
        return q @ k.mT

    def seen(self, row, col, length, keys, tile, causal):
        """Which query of the tile may see which key."""
        real = (col < keys).expand(len(row), -1)
        return real & (self.past(row, col, length, keys, tile) if causal else True)

    def past(self, row, col, length, keys, tile):
        """Bottom-right."""
        return col <= row[:, None] + keys - length


@mistake(
    "tails unmasked",
    rejected_by="the tile size changes nothing",
    symptom="Right for lengths that the tile divides, else every row leans towards zero.",
    cause="Keys past the end are loaded as zeros: score 0, not -inf.",
    seen="tracel-ai/cubecl pull request 920 (the mask that was missing)",
    of="tiled_attention",
)
class TailsUnmasked(Tiled):
    def load(self, tensor, start, tile):
        part = super().load(tensor, start, tile)
        return torch.nn.functional.pad(part, (0, 0, 0, tile - part.shape[-2]))

    def seen(self, row, col, length, keys, tile, causal):
        return super().seen(row, col, length, math.inf, tile, False) & (
            self.past(row, col, length, keys, tile) if causal else True
        )


@mistake(
    "the last keys are never read",
    rejected_by="every key is read",
    symptom="The newest keys, fewer than a tile, are invisible.",
    cause="S // tile tiles in place of the next whole number.",
    of="tiled_attention",
)
class KeyTailDropped(Tiled):
    def end(self, at, tile, length, keys, causal):
        return super().end(at, tile, length, keys, causal) // tile * tile


@mistake(
    "the last queries are never answered",
    rejected_by="every key is read",
    symptom="The last rows are zeros, or whatever the memory held.",
    cause="L // tile programs in place of the next whole number.",
    of="tiled_attention",
)
class QueryTailDropped(Tiled):
    def rows(self, length, tile):
        return length // tile * tile


@mistake(
    "tiles aligned top-left",
    rejected_by="the future stays hidden",
    symptom="Training is right, since L = S; with a cache the new queries see the oldest keys only.",
    cause="col <= row in place of col <= row + S - L.",
    seen="Dao-AILab/flash-attention until version 2.1",
    of="tiled_attention",
)
class TopLeft(Tiled):
    def end(self, at, tile, length, keys, causal):
        return min(keys, at + tile) if causal else keys

    def past(self, row, col, length, keys, tile):
        return col <= row[:, None]


@mistake(
    "the tile on the diagonal is skipped",
    rejected_by="the future stays hidden",
    symptom="A query does not see itself, nor the keys of its own tile.",
    cause="The loop ends where the block of queries starts; it must end where the block ends.",
    of="tiled_attention",
)
class LastTileSkipped(Tiled):
    def end(self, at, tile, length, keys, causal):
        return min(keys, max(0, at + keys - length)) if causal else keys


@mistake(
    "only the diagonal tile is masked",
    rejected_by="the future stays hidden",
    symptom="Right for L = S; with a cache whose length the tile does not divide, the future leaks.",
    cause="The mask is applied where the two tile numbers agree; S - L moves the diagonal.",
    of="tiled_attention",
)
class OnlyTheDiagonalTile(Tiled):
    def past(self, row, col, length, keys, tile):
        past = super().past(row, col, length, keys, tile)
        diagonal = int(row[0]) // tile == int(col[0]) // tile
        return past if diagonal else torch.ones_like(past)


@mistake(
    "the head size is written into the kernel",
    rejected_by="all of a head is read",
    symptom="Right for one head size. For a larger one the rest of each head is ignored.",
    cause="A constant, 64 there and 4 here, in place of the size of the tensor.",
    seen="triton-lang/triton issue 621",
    of="tiled_attention",
)
class HeadSizeWritten(Tiled):
    def scores(self, q, k):
        return q[..., :4] @ k[..., :4].mT


class Sums16(Online):
    def step(self, best, total, accumulator, scores, value):
        best, total, accumulator = super().step(best, total, accumulator, scores, value)
        return best, total.bfloat16().to(total.dtype), accumulator.bfloat16().to(accumulator.dtype)


@mistake(
    "sums kept in 16 bits",
    rejected_by="the tile size changes nothing",
    symptom="Fine for short rows. In a long one the sum stops growing: 256 + 1 is 256 in bfloat16.",
    cause="The sums are kept in the dtype of the inputs; they need float32.",
    of="tiled_attention",
)
class SumsIn16Bits(Tiled):
    online = Sums16()


COMPARISON_THAT_NAN_PASSES = Mutant(
    "a comparison that NaN passes",
    None,
    rejected_by="gallery only",
    symptom="The kernel gives NaN everywhere, and its test is green.",
    cause="In a test, which no judge sees: fmaxf(worst, fabsf(got - want)) drops a NaN.",
    seen="PaddleJitLab/CUDATutorial issue 69",
    of="tiled_attention",
)
