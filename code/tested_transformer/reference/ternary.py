"""The slow truth of BitNet b1.58: number by number."""

from __future__ import annotations

import numpy as np

from .attention import _wide


def bit_linear(x, weight, bias=None):
    """Ternary weights times inputs of 8 bits: whole numbers are summed, and divided by two scales.

    Shapes: x (*batch, D), weight (F, D), bias (F) -> (*batch, F). Source: BitNet b1.58.
    """
    x, weight = _wide(x), _wide(weight)
    mean = max(sum(abs(w) for w in weight.flat) / weight.size, 1e-5)
    ternary = np.array([[min(1, max(-1, round(w / mean))) for w in row] for row in weight])
    output = np.zeros((*x.shape[:-1], len(weight)), x.dtype)
    for token in np.ndindex(x.shape[:-1]):
        largest = max(max(abs(number) for number in x[token]), 1e-5)
        whole = [round(number * 127 / largest) for number in x[token]]
        for feature, row in enumerate(ternary):
            total = sum(int(w) * number for w, number in zip(row, whole, strict=True))
            output[(*token, feature)] = total * mean * largest / 127
    return output if bias is None else output + _wide(bias)


def pack_ternary(values):
    """Byte (i, j): the sum over p of 4^p (values[i + p F / 4, j] + 1). Shapes: (F, D) -> (F / 4, D)."""
    rows = len(values) // 4
    packed = np.zeros((rows, values.shape[1]), np.uint8)
    for i, j in np.ndindex(packed.shape):
        packed[i, j] = sum(4**p * (int(values[i + p * rows, j]) + 1) for p in range(4))
    return packed
