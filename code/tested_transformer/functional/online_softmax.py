"""The softmax in pieces: what must be kept of the keys seen so far, and attention tile by tile.

This is FlashAttention's arithmetic in a form to read. `backends/tiled.py` runs it on batches, with
gradients; `backends/flash_small.py` runs it on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..bounds import NonNegativeInt, PositiveInt
from ..shapes import checked

__all__ = [
    "Partial",
    "empty_state",
    "merge",
    "normalize",
    "online_softmax",
    "partial_softmax",
    "tile_kinds",
    "tiled_attention",
    "tiled_gradients",
]

SKIPPED, MASKED, FULL = 0, 1, 2  # what a tile of the scores may be


class Partial(NamedTuple):
    """All that has to be kept of some keys: merged with that of the others, it gives the answer.

    maximum: the largest score. total: the sum of exp(score - maximum). accumulator: the same sum, each
    term times its value. Of no keys at all: -inf, 0 and zeros.
    """

    maximum: Float[Tensor, "*batch L"]
    total: Float[Tensor, "*batch L"]
    accumulator: Float[Tensor, "*batch L dv"]


@checked
def empty_state(rows: Float[Tensor, "*batch L x"], width: NonNegativeInt) -> Partial:
    """What is kept of no keys: merging it changes nothing.

    Shapes: rows (*batch, L, x), of which only the shape and the dtype count; width: dv.
    """
    zeros = rows.new_zeros(rows.shape[:-1])
    return Partial(zeros - math.inf, zeros, rows.new_zeros(*rows.shape[:-1], width))


@checked(nonempty="S")
def partial_softmax(
    scores: Float[Tensor, "*batch L S"], value: Float[Tensor, "*batch S dv"]
) -> Partial:
    """What has to be kept of these keys; a hidden key has the score -inf.

    Shapes: scores (*batch, L, S), value (*batch, S, dv), S at least 1.
    Source: Milakov & Gimelshein 2018, algorithm 3; Dao et al. 2022, section 3.1.

    >>> partial_softmax(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0], [5.0]])).accumulator.tolist()
    [[8.0]]
    """
    maximum = scores.amax(-1)  # *batch L
    weights = torch.exp(scores - finite(maximum)[..., None])  # *batch L S
    return Partial(maximum, weights.sum(-1), weights @ value)


@checked
def merge(first: Partial, second: Partial) -> Partial:
    """What is kept of two sets of keys together, in whichever order.

    Shapes: both alike.
    Source: Milakov & Gimelshein 2018, section 3.1; Dao et al. 2022, section 3.1.

    >>> left = partial_softmax(torch.tensor([[1.0]]), torch.tensor([[3.0]]))
    >>> right = partial_softmax(torch.tensor([[1.0]]), torch.tensor([[5.0]]))
    >>> normalize(merge(left, right))[0].tolist()
    [[4.0]]
    """
    maximum = torch.maximum(first.maximum, second.maximum)
    shrink = [torch.exp(part.maximum - finite(maximum)) for part in (first, second)]
    total = first.total * shrink[0] + second.total * shrink[1]
    accumulator = (
        first.accumulator * shrink[0][..., None] + second.accumulator * shrink[1][..., None]
    )
    return Partial(maximum, total, accumulator)


def finite(maximum: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """0 in place of -inf, the maximum of a row that has seen nothing: -inf - (-inf) is NaN.

    Shapes: (*batch) -> the same.

    >>> finite(torch.tensor([2.0, -math.inf])).tolist()
    [2.0, 0.0]
    """
    return maximum.masked_fill(maximum == -math.inf, 0.0)


@checked
def normalize(part: Partial) -> tuple[Float[Tensor, "*batch L dv"], Float[Tensor, "*batch L"]]:
    """The output, divided at last, and the log-sum-exp; a fully masked row: 0 and +inf.

    The logarithm of an empty sum is -inf; +inf is stored, as the kernels do, because exp(score - lse)
    must be 0 when the weights are made again.

    Shapes: -> output (*batch, L, dv), log-sum-exp (*batch, L).
    Source: Dao 2023, section 3.1.
    """
    empty = part.total == 0
    total = part.total.masked_fill(empty, 1.0)
    lse = (part.maximum + total.log()).masked_fill(empty, math.inf)
    return part.accumulator / total[..., None], lse


@checked
def online_softmax(
    scores: Float[Tensor, "*batch L S"], value: Float[Tensor, "*batch S dv"], *, tile: PositiveInt
) -> tuple[Float[Tensor, "*batch L dv"], Float[Tensor, "*batch L"]]:
    """softmax(scores) @ value, `tile` keys at a time, and the log-sum-exp of each row.

    Shapes: scores (*batch, L, S), value (*batch, S, dv) -> output (*batch, L, dv), log-sum-exp
        (*batch, L). It computes in at least float32.
    Raises: TypeError and ValueError for what is no tensor of floats, lengths that differ, a tile
        that is no count.
    Source: Milakov & Gimelshein 2018, algorithm 3; Dao et al. 2022, algorithm 1.

    >>> scores, value = torch.tensor([[1000.0, 1000.0]]), torch.tensor([[3.0], [5.0]])
    >>> online_softmax(scores, value, tile=1)[0].tolist()
    [[4.0]]
    """
    dtype = scores.dtype
    scores, value = _wide(scores, value)
    state = empty_state(scores, value.shape[-1])
    for at in tiles(scores.shape[-1], tile):
        state = merge(state, partial_softmax(scores[..., at], value[..., at, :]))
    output, lse = normalize(state)
    return output.to(dtype), lse


def tiles(length: int, tile: int) -> Iterator[slice]:
    """Slices of `tile` places; the last is shorter where the length is no multiple.

    >>> [(at.start, at.stop) for at in tiles(5, 2)]
    [(0, 2), (2, 4), (4, 5)]
    """
    for start in range(0, length, tile):
        yield slice(start, min(start + tile, length))


@checked
def tiled_attention(
    query: Float[Tensor, "*batch L d"],
    key: Float[Tensor, "*batch S d"],
    value: Float[Tensor, "*batch S dv"],
    *,
    tile: PositiveInt,
    causal: bool = False,
) -> tuple[Float[Tensor, "*batch L dv"], Float[Tensor, "*batch L"]]:
    """Attention that never holds more than tile x tile scores, and each row's log-sum-exp.

    It reads its inputs by slices alone, as a kernel reads memory, so that the reads can be counted.
    Causal is aligned bottom-right.

    Shapes: query (*batch, L, d), key (*batch, S, d), value (*batch, S, dv) -> output
        (*batch, L, dv), log-sum-exp (*batch, L). It computes in at least float32.
    Raises: TypeError and ValueError for what is no tensor of floats, lengths or head sizes that
        differ, a tile that is no count.
    Source: Dao 2023, algorithm 1.
    """
    length, keys, scale = query.shape[-2], key.shape[-2], query.shape[-1] ** -0.5
    kinds = tile_kinds(length, keys, rows=tile, cols=tile, causal=causal)
    output = query.new_empty(*query.shape[:-1], value.shape[-1])
    lse = query.new_empty(query.shape[:-1], dtype=_wide_dtype(query))
    for n, rows in enumerate(tiles(length, tile)):
        q = query[..., rows, :].to(lse.dtype) * scale
        state = empty_state(q, value.shape[-1])
        for m, cols in enumerate(tiles(keys, tile)):
            if kinds[n, m] == SKIPPED:
                continue
            k, v = key[..., cols, :].to(lse.dtype), value[..., cols, :].to(lse.dtype)
            scores = q @ k.mT  # *batch tile tile
            if causal and kinds[n, m] == MASKED:
                future = ahead(rows, cols, keys - length) < 0
                scores = scores.masked_fill(future, -math.inf)
            state = merge(state, partial_softmax(scores, v))
        output[..., rows, :], lse[..., rows] = normalize(state)
    return output, lse


@checked
def tiled_gradients(
    query: Float[Tensor, "*batch L d"],
    key: Float[Tensor, "*batch S d"],
    value: Float[Tensor, "*batch S dv"],
    output: Float[Tensor, "*batch L dv"],
    lse: Float[Tensor, "*batch L"],
    gradient: Float[Tensor, "*batch L dv"],
    *,
    tile: PositiveInt,
    causal: bool = False,
) -> tuple[
    Float[Tensor, "*batch L d"], Float[Tensor, "*batch S d"], Float[Tensor, "*batch S dv"]
]:  # fmt: skip
    """The gradients by query, key and value: each tile of weights is made again.

    Shapes: output and lse as `tiled_attention` gave them, gradient like output -> the shapes of
        query, key and value.
    Raises: as `tiled_attention`.
    Source: Dao 2023, algorithm 2.
    """
    length, keys, scale = query.shape[-2], key.shape[-2], query.shape[-1] ** -0.5
    kinds = tile_kinds(length, keys, rows=tile, cols=tile, causal=causal)
    dtype = query.dtype
    query, key, value, output, gradient = _wide(query, key, value, output, gradient)
    by_query, by_key, by_value = (torch.zeros_like(tensor) for tensor in (query, key, value))
    delta = (gradient * output).sum(-1, keepdim=True)  # *batch L 1
    for n, rows in enumerate(tiles(length, tile)):
        for m, cols in enumerate(tiles(keys, tile)):
            if kinds[n, m] == SKIPPED:
                continue
            scores = query[..., rows, :] @ key[..., cols, :].mT * scale
            weights = torch.exp(scores - lse[..., rows, None])  # as in the forward pass
            if causal and kinds[n, m] == MASKED:
                future = ahead(rows, cols, keys - length) < 0
                weights = weights.masked_fill(future, 0.0)
            by_weights = gradient[..., rows, :] @ value[..., cols, :].mT
            by_scores = weights * (by_weights - delta[..., rows, :])
            by_query[..., rows, :] += by_scores @ key[..., cols, :] * scale
            by_key[..., cols, :] += by_scores.mT @ query[..., rows, :] * scale
            by_value[..., cols, :] += weights.mT @ gradient[..., rows, :]
    return by_query.to(dtype), by_key.to(dtype), by_value.to(dtype)


def ahead(rows: slice, cols: slice, shift: int) -> Tensor:
    """How far each key of a tile lies before its query; shift: S - L. Negative: in the future.

    Shapes: -> (rows, cols), whole numbers.

    >>> ahead(slice(0, 2), slice(0, 3), 1).tolist()
    [[1, 0, -1], [2, 1, 0]]
    """
    row, col = (torch.arange(at.start, at.stop) for at in (rows, cols))
    return row[:, None] + shift - col


@checked
def tile_kinds(
    length: NonNegativeInt,
    keys: NonNegativeInt,
    *,
    rows: PositiveInt,
    cols: PositiveInt,
    causal: bool = False,
    window: PositiveInt | None = None,
) -> np.ndarray:
    """What becomes of each tile of the scores, found from its corners: SKIPPED, MASKED or FULL.

    Skipped: no query of the tile may see any of its keys. Full: each sees all of them, and no key is
    missing. The kernels' `tile_range` decides the same.

    Shapes: -> (ceil(L / rows), ceil(S / cols)), whole numbers.
    Raises: TypeError and ValueError for sizes that are no counts.
    Source: Dao 2023, section 3.1.

    >>> tile_kinds(4, 4, rows=2, cols=2, causal=True).tolist()
    [[1, 0], [2, 1]]
    """
    past = math.inf if window is None else window - 1  # a key may lie so far back
    future = 0 if causal else -past  # and no farther ahead than this
    kinds = np.full((-(-length // rows), -(-keys // cols)), FULL)
    for n, m in np.ndindex(kinds.shape):
        top, bottom = n * rows, min((n + 1) * rows, length) - 1
        left, right = m * cols, min((m + 1) * cols, keys) - 1
        nearest, farthest = top + keys - length - right, bottom + keys - length - left
        if farthest < future or nearest > past:
            kinds[n, m] = SKIPPED
        elif nearest < future or farthest > past or right < (m + 1) * cols - 1:
            kinds[n, m] = MASKED
    return kinds


def _wide_dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _wide(*tensors: Tensor) -> list[Tensor]:
    return [tensor.to(_wide_dtype(tensor)) for tensor in tensors]
