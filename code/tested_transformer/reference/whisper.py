"""The slow truth of how Whisper's encoder begins."""

from __future__ import annotations

import numpy as np

from .attention import _wide
from .feed_forward import bend


def audio_positions(length, d_model):
    """Feature by feature: D/2 sines, then D/2 cosines; the i-th angle is pos / 10000^(i / (D/2 - 1)).

    Shapes: numbers -> (length, D). Source: whisper/model.py, sinusoids.
    """
    half = d_model // 2
    output = np.zeros((length, d_model), dtype=np.longdouble)
    for pos in range(length):
        for i in range(half):
            angle = np.longdouble(pos) / np.longdouble(10000) ** (np.longdouble(i) / (half - 1))
            output[pos, i], output[pos, half + i] = np.sin(angle), np.cos(angle)
    return output


def audio_stem(features, first_weight, first_bias, second_weight, second_bias, positions):
    """Two convolutions with GELU, the second with stride 2, plus positions, number by number.

    Shapes: (B, M, F), (D, M, 3), (D), (D, D, 3), (D), (F/2, D) -> (B, F/2, D).
    Source: Radford et al. 2022, section 2.2.
    """
    given = features, first_weight, first_bias, second_weight, second_bias, positions
    features, first_weight, first_bias, second_weight, second_bias, positions = map(_wide, given)
    x = convolved(features, first_weight, first_bias, 1)
    x = convolved(x, second_weight, second_bias, 2)
    return x.transpose(0, 2, 1) + positions


def convolved(x, weight, bias, stride):
    """Each output hears three neighbors, with a 0 before the first and after the last; then GELU."""
    batch, _, length = x.shape
    output = np.zeros((batch, len(weight), length // stride), dtype=x.dtype)
    for b, d, s in np.ndindex(output.shape):
        total = bias[d]
        for k in range(3):
            if 0 <= (at := stride * s + k - 1) < length:
                total = total + np.sum(x[b, :, at] * weight[d, :, k])
        output[b, d, s] = bend(total, "gelu")
    return output
