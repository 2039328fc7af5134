"""The slow truth of the delta rule: forget, look up, write the difference, read."""

from __future__ import annotations

import numpy as np

from .attention import dot


def delta_rule(
    query, key, value, beta, log_decay=None, *, state=None, scale=None, chunk_size=None
):  # fmt: skip
    """For each token: decay the state, then add key (beta (value - key^T state))^T; the output is query^T state.

    chunk_size changes nothing. Gives the output and the state after the last token.

    Shapes: query and key (B, H, L, d), value (B, H, L, dv), beta (B, H, L), log_decay (B, H, L), broadcast, or
    (B, H, L, d), state (B, H, d, dv) -> (B, H, L, dv), (B, H, d, dv). Source: Yang et al. 2025 (gated DeltaNet);
    Kimi Team 2025 (Kimi Linear).
    """
    batch, heads, length, width = query.shape
    scale = 1 / query.dtype.type(width) ** query.dtype.type(0.5) if scale is None else scale
    if log_decay is None:
        log_decay = np.zeros((1, 1, 1), query.dtype)
    log_decay = log_decay[..., None] if log_decay.ndim == 3 else log_decay
    log_decay = np.broadcast_to(log_decay, query.shape)
    states = np.zeros((batch, heads, width, value.shape[-1]), query.dtype)
    states = states if state is None else state.copy()
    output = np.zeros((batch, heads, length, value.shape[-1]), query.dtype)
    for b, h, t in np.ndindex(batch, heads, length):
        states[b, h] *= np.exp(log_decay[b, h, t])[:, None]
        for j in range(value.shape[-1]):
            stored = dot(key[b, h, t], states[b, h, :, j])
            change = beta[b, h, t] * (value[b, h, t, j] - stored)
            states[b, h, :, j] += key[b, h, t] * change
            output[b, h, t, j] = scale * dot(query[b, h, t], states[b, h, :, j])
    return output, states
