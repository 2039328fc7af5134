"""The slow truth of retention: a state that decays and takes in one token after the other."""

from __future__ import annotations

import numpy as np

from .attention import dot


def retention(query, key, value, log_decay, *, state=None, scale=None, chunk_size=None):
    """For each token: the state times its decay, plus key value^T; the output is query^T state.

    chunk_size changes nothing. Gives the output and the state after the last token.

    Shapes: query and key (B, H, L, d), value (B, H, L, dv), log_decay (B, H, L), broadcast, state
    (B, H, d, dv) -> (B, H, L, dv), (B, H, d, dv). Source: RetNet, equation 6; YOCO, section 3.1.
    """
    batch, heads, length, width = query.shape
    scale = 1 / query.dtype.type(width) ** query.dtype.type(0.5) if scale is None else scale
    log_decay = np.broadcast_to(log_decay, (batch, heads, length))
    states = np.zeros((batch, heads, width, value.shape[-1]), query.dtype)
    states = states if state is None else state.copy()
    output = np.zeros((batch, heads, length, value.shape[-1]), query.dtype)
    for b, h, t in np.ndindex(batch, heads, length):
        states[b, h] *= np.exp(log_decay[b, h, t])
        states[b, h] += np.outer(key[b, h, t], value[b, h, t])
        for j in range(value.shape[-1]):
            output[b, h, t, j] = scale * dot(query[b, h, t], states[b, h, :, j])
    return output, states


def gated_retention(
    query, key, value, gate_logits, *, temperature=16.0, real=None, state=None, scale=None,
    norm_eps=1e-5, chunk_size=None,
):  # fmt: skip
    """Retention with decays of sigmoid(logit)^(1 / temperature), each head divided by its root mean square.

    Padding, where real is False, does nothing to the state.

    Shapes: as `retention`, gate_logits (B, H, L), real (B, L). Source: YOCO, section 3.1.
    """
    log_decay, key = np.zeros_like(gate_logits), key.copy()
    for b, h, t in np.ndindex(gate_logits.shape):
        if real is None or real[b, t]:
            log_decay[b, h, t] = -np.logaddexp(0, -gate_logits[b, h, t]) / temperature
        else:
            key[b, h, t] = 0
    output, state = retention(query, key, value, log_decay, state=state, scale=scale)
    for place in np.ndindex(output.shape[:3]):
        mean_square = dot(output[place], output[place]) / output.shape[-1]
        output[place] /= (mean_square + norm_eps) ** output.dtype.type(0.5)
    return output, state
