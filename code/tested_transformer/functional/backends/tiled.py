"""FlashAttention in plain PyTorch: tiles of the scores, one after the other, and never all of them.

The softmax of a row needs the row's maximum and sum. Both can be kept up to date while the scores
come in tiles of keys: whenever the maximum grows, what was summed so far is scaled down (Milakov &
Gimelshein 2018). The output is such a sum too, so no row is ever held as a whole (Dao et al. 2022,
Algorithm 1); the division by the sum waits for the end, queries are the outer loop, and one number a
row, the log-sum-exp, is kept for the backward pass, which computes each tile of weights once more
(Dao 2023, FlashAttention-2). Memory grows with the length, not with its square.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, product
from typing import NamedTuple

import torch
from torch import Tensor

from ..inputs import AttentionInputs, no_autocast, once_differentiable, transforms

LOG2_OF_E = math.log2(math.e)


class Tiling(NamedTuple):
    """The size of a tile, and how many scores may exist at once: heads are taken together up to it.

    The defaults were among the fastest of nine tried on a processor, at 4,096 tokens of size 64.
    """

    queries: int = 256
    keys: int = 512
    scores: int = 2**19


def unsupported_reason(call: AttentionInputs) -> str | None:
    """Why this backend cannot serve the call, or None if it can."""
    if call.return_weights:
        return "it forgets each tile of the weights, so it cannot return them"
    if transforms():
        return f"it cannot run inside torch.func's transforms ({', '.join(transforms())})"
    if torch.compiler.is_exporting():
        return "it cannot be exported: its loops would be fixed to these lengths"
    return None


def run(call: AttentionInputs) -> tuple[Tensor, None]:
    """Answer the call tile by tile, computing in at least float32.

    Shapes: -> output (*batch, L, dv), None.
    Source: Dao et al. 2022, Algorithm 1; Dao 2023, Algorithms 1 and 2.
    """
    return tiled(call), None


def tiled(call: AttentionInputs, tiling: Tiling | None = None) -> Tensor:
    """Answer the call in tiles of a given size. Every size gives the same numbers, up to rounding.

    Dropout draws one seed from PyTorch's generator; each tile has a generator of its own, so that
    the backward pass can draw the tile's zeros again. They depend on the tile size.

    Shapes: -> (*batch, L, dv).
    Source: Dao 2023, Algorithms 1 and 2; dropout: Dao et al. 2022, appendix B.4.
    """
    if call.query.ndim == 2:  # one sample
        query, key, value = (t[None] for t in (call.query, call.key, call.value))
        return tiled(replace(call, query=query, key=key, value=value), tiling)[0]
    options = {
        "causal": call.causal, "window": call.window, "scale": call.scale,
        "dropout_p": call.dropout_p,
    }  # fmt: skip
    seed = int(torch.randint(2**62, ())) if call.dropout_p > 0 else 0
    output = _Tiled.apply(
        call.query, call.key, call.value, call.bias, call.alibi_slopes, call.mask,
        call.key_lengths, options, tiling or Tiling(), seed,
    )  # fmt: skip
    return once_differentiable("tiled", output)


def attend(query: Tensor, tiles: Iterable[Tile], width: int) -> tuple[Tensor, Tensor]:
    """One block of queries, already scaled, over tiles of keys: the online softmax.

    Shapes: query (N, M, d), tiles of T keys -> output (N, M, dv), log-sum-exp (N, M, 1).
    A row that has seen no key, or only scores of -inf, is empty: zeros.
    Source: Dao 2023, Algorithm 1, the inner loop; Milakov & Gimelshein 2018, Algorithm 3.
    """
    maximum = query.new_full((*query.shape[:-1], 1), torch.finfo(query.dtype).min)  # N M 1
    total = torch.zeros_like(maximum)  # N M 1, the sum of exp(score - maximum)
    output = query.new_zeros(*query.shape[:-1], width)  # N M dv, the same sum, times the values
    for tile in tiles:
        scores = tile.space.baddbmm_(query, tile.key.mT, beta=0)  # N M T, over the last tile's
        tile.finish(scores)  # the bias is added, hidden places are -inf
        larger = torch.maximum(maximum, scores.amax(-1, keepdim=True))  # N M 1
        weights = exp_(scores.sub_(larger))  # N M T, not yet divided by their sum
        shrink = exp_(maximum - larger)  # N M 1, 1 where the maximum stayed
        total.mul_(shrink).add_(weights.sum(-1, keepdim=True))
        output.mul_(shrink).baddbmm_(tile.drop(weights), tile.value)
        maximum = larger
    total.masked_fill_(total == 0, 1.0)  # a fully masked row has summed nothing: 0 / 1
    return output.div_(total), maximum.add_(total.log_())


def exp_(x: Tensor) -> Tensor:
    """e^x in place, as a power of 2: on a processor torch.exp takes twice as long."""
    return x.mul_(LOG2_OF_E).exp2_()


def attend_backward(
    query: Tensor, grad_output: Tensor, log_sum_exp: Tensor, mean: Tensor,
    tiles: Iterable[Tile], grads: Gradients,
) -> Tensor:  # fmt: skip
    """The gradients of one block of queries; what concerns the keys is added to `grads`.

    The softmax's derivative is weight x (its gradient - their mean under the weights), and that
    mean is grad_output . output: a number for each row, known before the first tile.

    Shapes: query (N, M, d), grad_output (N, M, dv), log_sum_exp, mean (N, M, 1) -> (N, M, d).
    Source: Dao 2023, Algorithm 2.
    """
    grad_query = torch.zeros_like(query)
    for tile in tiles:
        scores = tile.finish(tile.space.baddbmm_(query, tile.key.mT, beta=0))  # N M T
        weights = exp_(scores.sub_(log_sum_exp))  # N M T, the forward pass's over their sum
        grad_weights = tile.drop(grad_output @ tile.value.mT)  # N M T
        grad_scores = grad_weights.sub_(mean).mul_(weights)  # N M T
        grad_query.baddbmm_(grad_scores, tile.key)
        tile.add_keys(grads.key, grad_scores.mT @ query)
        tile.add_keys(grads.value, tile.drop(weights).mT @ grad_output)
        tile.add_scores(grads, grad_scores)
        del grad_weights, grad_scores  # before the next tile's are made
    return grad_query


class _Tiled(torch.autograd.Function):
    """Forward and backward over the grid of tiles; keeps the inputs, the output and one row."""

    @staticmethod
    def forward(ctx, query, key, value, bias, slopes, mask, lengths, options, tiling, seed):
        call = AttentionInputs(
            query, key, value, mask=mask, bias=bias, key_lengths=lengths, alibi_slopes=slopes,
            **options,
        )  # fmt: skip
        grid = Grid(call, tiling, seed)
        output = query.new_empty(*query.shape[:-1], value.shape[-1])
        log_sum_exp = query.new_empty((*query.shape[:-1], 1), dtype=grid.dtype)
        for block in grid.blocks():
            tiles = grid.tiles(block)
            answer = attend(grid.rows(query, block).mul(call.scale), tiles, value.shape[-1])
            for whole, part in zip((output, log_sum_exp), answer, strict=True):
                place = whole[*block.batch, ..., block.rows, :]
                place.copy_(part.view(place.shape))
        ctx.save_for_backward(query, key, value, bias, slopes, mask, lengths, output, log_sum_exp)
        ctx.options, ctx.tiling, ctx.seed = options, tiling, seed
        return output

    @staticmethod
    def backward(ctx, grad_output):
        query, key, value, bias, slopes, mask, lengths, output, log_sum_exp = ctx.saved_tensors
        call = AttentionInputs(
            query, key, value, mask=mask, bias=bias, key_lengths=lengths, alibi_slopes=slopes,
            **ctx.options,
        )  # fmt: skip
        grid = Grid(call, ctx.tiling, ctx.seed)
        grads = Gradients.zeros(grid, bias=ctx.needs_input_grad[3], slopes=ctx.needs_input_grad[4])
        grad_query = torch.empty_like(query)
        with no_autocast(query.device.type):
            for block in grid.blocks():
                scaled = grid.rows(query, block).mul(call.scale)
                grad, row = grid.rows(grad_output, block), grid.rows(log_sum_exp, block)
                mean = (grad * grid.rows(output, block)).sum(-1, keepdim=True)
                part = attend_backward(scaled, grad, row, mean, grid.tiles(block), grads)
                place = grad_query[*block.batch, ..., block.rows, :]
                place.copy_(part.mul_(call.scale).view(place.shape))
        sums = (grads.key, grads.value, grads.bias, grads.slopes)
        found = (
            None if grad is None else grad.to(like.dtype).view(like.shape)
            for grad, like in zip(sums, (key, value, bias, slopes), strict=True)
        )
        return grad_query, *found, *[None] * 5


class Block(NamedTuple):
    """Some samples, some heads of theirs, and some queries of these."""

    batch: tuple[slice, ...]  # of the first axis, samples; and of the second, query heads
    batch_kv: tuple[slice, ...]  # the same, KV heads
    rows: slice


class Grid:
    """The scores of one call, cut into blocks of queries, and these into tiles of keys."""

    def __init__(self, call: AttentionInputs, tiling: Tiling, seed: int) -> None:
        rank, lengths = call.query.ndim, call.key_lengths
        self.call, self.tiling = call, tiling
        self.dtype = torch.promote_types(call.query.dtype, torch.float32)
        self.mask, self.bias = lift(call.mask, rank), lift(call.bias, rank)
        self.slopes = None
        if call.alibi_slopes is not None:
            self.slopes = lift(call.alibi_slopes[:, None, None], rank).to(self.dtype)
        self.lengths = None if lengths is None else lengths.view(-1, *[1] * (rank - 1))
        # Reading values on a GPU would wait for it, and stops torch.compile.
        readable = lengths is not None and lengths.device.type == "cpu"
        readable = readable and not torch.compiler.is_compiling()
        self.known_lengths = lengths.tolist() if readable else None
        self.seeds = count(seed)  # of the tiles; both passes visit them in the same order
        length, keys = call.scores_shape[-2:]
        self.shift = keys - length  # query i stands at key i + shift
        shape, sizes = call.key.shape[2:-2], call.key.shape[:-2][:2]  # samples, KV heads
        each = math.prod(shape) * call.groups * min(length, tiling.queries) * min(keys, tiling.keys)
        room = max(1, tiling.scores // max(1, each))  # KV heads in a block
        together = (room // max(1, math.prod(sizes[1:])), *[room] * len(sizes[1:]))
        self.together = [max(1, min(pair)) for pair in zip(sizes, together, strict=True)]
        self.space = call.query.new_empty(math.prod(self.together) * each, dtype=self.dtype)

    def blocks(self) -> Iterator[Block]:
        """All blocks: as many samples and heads together as the number of scores allows."""
        sizes, groups = (*self.call.key.shape[:-2][:2], self.call.query.shape[-2]), self.call.groups
        axes = zip(sizes, (*self.together, self.tiling.queries), strict=True)
        for samples, *heads, rows in product(*(pieces(0, size, some) for size, some in axes)):
            each = (slice(h.start * groups, h.stop * groups) for h in heads)
            yield Block((samples, *each), (samples, *heads), rows)

    def tiles(self, block: Block) -> Iterator[Tile]:
        """The tiles of a block in which some query may see some key by causal, window and lengths."""
        first, last = block.rows.start + self.shift, block.rows.stop - 1 + self.shift
        start, stop = 0, self.call.key.shape[-2]
        if self.call.causal:
            stop = min(stop, last + 1)
        if self.call.window is not None:
            start = max(start, first - self.call.window + 1)
            stop = min(stop, last + self.call.window)
        if self.known_lengths is not None:
            stop = min(stop, max(self.known_lengths[block.batch[0]]))
        for columns in pieces(start, stop, self.tiling.keys):
            key, value = (
                tensor[*block.batch_kv, ..., columns, :].flatten(0, -3).to(self.dtype)
                for tensor in (self.call.key, self.call.value)
            )
            shape = (key.shape[0], self.call.groups * (last + 1 - first), key.shape[1])
            space = self.space[: math.prod(shape)].view(shape)
            yield Tile(self, block, columns, next(self.seeds), key, value, space)

    def rows(self, tensor: Tensor, block: Block) -> Tensor:
        """The block's rows of the query or what is like it, the heads of one KV head together.

        Shapes: (*batch, L, x) -> (N, M, x): N KV heads in all samples, M rows for each.
        """
        part = tensor[*block.batch, ..., block.rows, :].to(self.dtype)
        *batch, rows, width = part.shape
        return part.reshape(math.prod(batch) // self.call.groups, self.call.groups * rows, width)


@dataclass(frozen=True)
class Tile:
    """The scores of a block of queries with some keys: N M T, seen as *batch L S where that helps."""

    grid: Grid
    block: Block
    columns: slice
    seed: int
    key: Tensor  # N T d
    value: Tensor  # N T dv
    space: Tensor  # N M T, memory for the scores: one piece for all tiles

    def finish(self, scores: Tensor) -> Tensor:
        """Add the bias and ALiBi's penalty, and hide what is hidden, in place: N M T -> N M T."""
        grid, view = self.grid, self.unfold(scores)
        if grid.bias is not None:
            view.add_(self.part(grid.bias))
        if grid.slopes is not None:
            view.addcmul_(self.part(grid.slopes), self.distances(), value=-1)
        for hidden in self.hidden():
            view.masked_fill_(hidden, float("-inf"))
        return scores

    def hidden(self) -> Iterator[Tensor]:
        """True where a key is hidden, for each rule that hides something in this tile."""
        grid, rows, columns = self.grid, self.block.rows, self.columns
        if grid.mask is not None:
            yield ~self.part(grid.mask)
        row, column = self.places()
        nearest = rows.start + grid.shift - (columns.stop - 1)  # the least of row - column
        farthest = rows.stop - 1 + grid.shift - columns.start
        if grid.call.causal and nearest < 0:
            yield column > row
        window = grid.call.window
        if window is not None and farthest >= window:
            yield column <= row - window
        if window is not None and nearest <= -window:
            yield column >= row + window
        known = grid.known_lengths
        inside = known is not None and min(known[self.block.batch[0]]) >= columns.stop
        if grid.lengths is not None and not inside:
            yield column >= self.part(grid.lengths)

    def places(self) -> tuple[Tensor, Tensor]:
        """Where the queries and the keys stand, counted in keys: (rows, 1) and (T)."""
        rows, columns, device = self.block.rows, self.columns, self.key.device
        row = torch.arange(rows.start, rows.stop, device=device) + self.grid.shift
        return row[:, None], torch.arange(columns.start, columns.stop, device=device)

    def distances(self) -> Tensor:
        """How many steps lie between each query and each key: (rows, T)."""
        row, column = self.places()
        return (row - column).abs().to(self.key.dtype)

    def drop(self, weights: Tensor) -> Tensor:
        """Dropout, in place; in the backward pass the same zeros fall again."""
        return weights if self.grid.call.dropout_p == 0 else weights.mul_(self.kept)

    @cached_property
    def kept(self) -> Tensor:
        """What dropout multiplies by, 0 or 1 / (1 - p): N M T."""
        keep = 1 - self.grid.call.dropout_p
        generator = torch.Generator(self.key.device).manual_seed(self.seed)
        return torch.empty_like(self.space).bernoulli_(keep, generator=generator).div_(keep)

    def part(self, tensor: Tensor) -> Tensor:
        """What a tensor of the scores' rank holds for this tile; an axis of size 1 stands for all."""
        place = (*self.block.batch, ..., self.block.rows, self.columns)
        sizes = (*tensor.shape[: len(self.block.batch)], ..., *tensor.shape[-2:])
        return tensor[
            tuple(slice(None) if n == 1 else some for n, some in zip(sizes, place, strict=True))
        ]

    def unfold(self, scores: Tensor) -> Tensor:
        """N M T as *batch L S, the same memory."""
        batch, rows = [s.stop - s.start for s in self.block.batch], self.block.rows
        rest = self.grid.call.query.shape[len(batch) : -2]
        return scores.view(*batch, *rest, rows.stop - rows.start, scores.shape[-1])

    def add_keys(self, whole: Tensor, part: Tensor) -> None:
        """Add (N, T, x) to the tile's keys in (*batch_kv, S, x)."""
        place = whole[*self.block.batch_kv, ..., self.columns, :]
        place.add_(part.view(place.shape))

    def add_scores(self, grads: Gradients, part: Tensor) -> None:
        """Add to the gradients of bias and slopes, where wanted, summed over what they stand for."""
        grad = self.unfold(part)
        if grads.bias is not None:
            place = self.part(grads.bias)
            place.add_(grad.sum_to_size(place.shape))
        if grads.slopes is not None:
            place = self.part(grads.slopes)
            place.sub_((grad * self.distances()).sum_to_size(place.shape))


@dataclass(frozen=True)
class Gradients:
    """Sums over the blocks of queries; None where no gradient is wanted."""

    key: Tensor  # *batch_kv S d
    value: Tensor  # *batch_kv S dv
    bias: Tensor | None  # the bias' own shape, lifted
    slopes: Tensor | None  # H 1 1, lifted

    @classmethod
    def zeros(cls, grid: Grid, *, bias: bool, slopes: bool) -> Gradients:
        """Nothing summed yet."""
        wanted = (
            grid.call.key, grid.call.value, grid.bias if bias else None,
            grid.slopes if slopes else None,
        )  # fmt: skip
        return cls(*(None if t is None else torch.zeros_like(t, dtype=grid.dtype) for t in wanted))


def lift(tensor: Tensor | None, rank: int) -> Tensor | None:
    """Leading axes of size 1, up to the rank of the scores."""
    return None if tensor is None else tensor.view(*[1] * (rank - tensor.ndim), *tensor.shape)


def pieces(start: int, stop: int, size: int) -> Iterator[slice]:
    """Slices of at most `size`, from start to stop."""
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))
