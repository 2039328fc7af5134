"""The slow truth of state spaces: a short convolution, a selective scan and that of Mamba-2, token by token."""

from __future__ import annotations

import numpy as np

from .attention import dot


def short_convolution(x, weight, bias=None, *, state=None, real=None):
    """Each real token reads itself and the real tokens before it, the state first; padding gives 0.

    Shapes: x (B, L, D), weight (D, W), bias (D), state (B, D, W - 1), real (B, L) -> (B, L, D), (B, D, W - 1).
    Source: Gu and Dao 2023 (Mamba).
    """
    (batch, length, features), width = x.shape, weight.shape[1]
    states = np.zeros((batch, features, width - 1), x.dtype) if state is None else state.copy()
    y = np.zeros_like(x)
    for b, t in np.ndindex(batch, length):
        if real is not None and not real[b, t]:
            continue
        window = np.concatenate((states[b], x[b, t][:, None]), axis=1)  # D W
        for i in range(features):
            y[b, t, i] = dot(weight[i], window[i]) + (0 if bias is None else bias[i])
        states[b] = window[:, 1:]
    return y, states


def selective_scan(
    x, delta, a, b, c, *, skip=None, state=None, real=None, method="euler", chunk_size=None
):
    """For each feature and token: h = exp(delta a) h + b_bar x, then y = c . h + skip x. Padding has delta 0.

    Shapes: x and delta (B, L, D), a (D, N), b and c (B, L, N), skip (D), state (B, D, N), real (B, L) ->
    (B, L, D), (B, D, N). Source: Gu and Dao 2023 (Mamba), equation 4; state-spaces/mamba.
    """
    (batch, length, features), number = x.shape, a.shape[1]
    states = np.zeros((batch, features, number), x.dtype) if state is None else state.copy()
    y = np.zeros_like(x)
    for n, t, i in np.ndindex(batch, length, features):
        step = delta[n, t, i] if real is None or real[n, t] else x.dtype.type(0)
        for s in range(number):
            hold = np.expm1(step * a[i, s]) / a[i, s]  # the integral of exp(a s) over the step
            b_bar = b[n, t, s] * (hold if method == "zoh" else step)
            states[n, i, s] = np.exp(step * a[i, s]) * states[n, i, s] + b_bar * x[n, t, i]
        y[n, t, i] = dot(c[n, t], states[n, i]) + (0 if skip is None else skip[i] * x[n, t, i])
    return y, states


def ssd(x, delta, a, b, c, *, skip=None, state=None, real=None, chunk_size=None):
    """For each head and token: h = exp(delta a) h + delta b x^T, then y = c^T h + skip x.

    Shapes: x (B, H, L, d), delta (B, H, L), a and skip (H), b and c (B, G, L, N), state (B, H, N, d), real (B, L)
    -> (B, H, L, d), (B, H, N, d). Source: Dao and Gu 2024 (Mamba-2).
    """
    batch, heads, length, width = x.shape
    shared, number = heads // b.shape[1], b.shape[3]
    states = np.zeros((batch, heads, number, width), x.dtype) if state is None else state.copy()
    y = np.zeros_like(x)
    for n, h, t in np.ndindex(batch, heads, length):
        step = delta[n, h, t] if real is None or real[n, t] else x.dtype.type(0)
        states[n, h] *= np.exp(step * a[h])
        states[n, h] += step * np.outer(b[n, h // shared, t], x[n, h, t])
        for j in range(width):
            y[n, h, t, j] = dot(c[n, h // shared, t], states[n, h, :, j])
            y[n, h, t, j] += 0 if skip is None else skip[h] * x[n, h, t, j]
    return y, states
