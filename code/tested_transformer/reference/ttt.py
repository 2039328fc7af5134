"""The slow truth of TTT-Linear: a matrix W, and one gradient step on it per token."""

from __future__ import annotations

import numpy as np

from .attention import dot


def ttt_linear(query, key, value, step_size, *, state=None, batch_size=16):
    """For each token W -= step_size k^T (k W0 - v), W0 being W where its mini-batch began; the output is q W.

    Shapes: query and key (B, H, L, d), value (B, H, L, dv), step_size (B, H, L), state (B, H, d, dv) ->
    (B, H, L, dv), (B, H, d, dv). Source: Sun et al. 2024 (TTT).
    """
    batch, heads, length, width = query.shape
    shape = (batch, heads, width, value.shape[-1])
    states = np.zeros(shape, query.dtype) if state is None else state.copy()
    output = np.zeros((batch, heads, length, shape[-1]), query.dtype)
    for b, h in np.ndindex(batch, heads):
        for t in range(length):
            if t % batch_size == 0:
                start = states[b, h].copy()
            k = key[b, h, t]
            for j in range(shape[-1]):
                error = dot(k, start[:, j]) - value[b, h, t, j]
                states[b, h, :, j] -= step_size[b, h, t] * error * k
                output[b, h, t, j] = dot(query[b, h, t], states[b, h, :, j])
    return output, states
