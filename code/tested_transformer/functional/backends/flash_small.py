"""FlashAttention in one small Triton kernel: forward, full or causal. A deeper page of chapter 15 reads it.

It imports Triton, so nothing imports it but who wants the kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def small_kernel(
    query, key, value, output, length, keys, scale,
    D: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """One program answers ROWS queries of one head, COLS keys at a time."""
    head = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    width = tl.arange(0, D)
    place = (head * length + rows[:, None]) * D + width  # ROWS D
    q = tl.load(query + place, mask=rows[:, None] < length, other=0.0)  # ROWS D
    best = tl.full((ROWS,), float("-inf"), tl.float32)  # the largest score so far
    total = tl.zeros((ROWS,), tl.float32)  # the sum of exp(score - best) so far
    mixed = tl.zeros((ROWS, D), tl.float32)  # the same sum, each term times its value
    end = keys
    if CAUSAL:  # tiles in which every key lies in the future are never loaded
        end = tl.minimum(keys, (tl.program_id(0) + 1) * ROWS + keys - length)
    for start in range(0, end, COLS):
        cols = start + tl.arange(0, COLS)
        inside = cols[:, None] < keys
        at = (head * keys + cols[:, None]) * D + width
        k = tl.load(key + at, mask=inside, other=0.0)  # COLS D
        v = tl.load(value + at, mask=inside, other=0.0)  # COLS D
        scores = tl.dot(q, k.T, input_precision="ieee") * scale  # ROWS COLS
        seen = cols[None, :] < keys
        if CAUSAL:  # bottom-right: the last query sees the last key
            seen = seen & (cols[None, :] <= rows[:, None] + keys - length)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        # A row that has seen nothing yet: -inf - (-inf) would be NaN.
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        shrink = tl.exp(best - safe)  # the old sums had the old maximum
        p = tl.exp(scores - safe[:, None])
        total = total * shrink + tl.sum(p, 1)
        more = tl.dot(p.to(v.dtype), v, input_precision="ieee")  # ROWS D
        mixed = mixed * shrink[:, None] + more
        best = higher
    total = tl.where(total == 0.0, 1.0, total)  # a fully masked row gives zeros
    answer = mixed / total[:, None]
    tl.store(output + place, answer.to(output.dtype.element_ty), mask=rows[:, None] < length)


def small_flash(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, tile: int = 64
) -> Tensor:
    """Attention by `small_kernel`, on a GPU or in Triton's interpreter.

    Shapes: query (B, H, L, d), key and value (B, H, S, d), contiguous, d a power of two from 16 on
        -> (B, H, L, d).
    Raises: ValueError for tensors that are not contiguous, and for other shapes of key or value.
    Source: Dao et al. 2022, algorithm 1; Dao 2023, section 3.1.
    """
    (batch, heads, length, size), keys = query.shape, key.shape[2]
    if not key.shape == value.shape == (batch, heads, keys, size):
        raise ValueError("query, key and value need the same heads and the same head dimension")
    if not all(tensor.is_contiguous() for tensor in (query, key, value)):
        raise ValueError("the kernel knows no strides: make its inputs contiguous")
    output = torch.empty_like(query)
    small_kernel[triton.cdiv(length, tile), batch * heads](
        query, key, value, output, length, keys, size**-0.5,
        D=size, ROWS=tile, COLS=tile, CAUSAL=causal,
    )  # fmt: skip
    return output
