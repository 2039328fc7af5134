"""The slow truth of linear attention: a matrix that takes in one key and value after the other."""

from __future__ import annotations

import numpy as np

from .attention import dot


def features(x, feature_map):
    """x + 1 above 0, exp(x) below, for "elu+1"; x itself for "identity"."""
    if feature_map == "identity":
        return x
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def linear_attention(
    query, key, value, *, feature_map="elu+1", normalize=True, real=None, state=None, chunk_size=None
):  # fmt: skip
    """For each token: the state plus phi(key) value^T; the output is phi(query)^T state, divided by its last entry.

    With normalize every value has a 1 at its end. Where real is False, a token leaves the state as it is.

    Shapes: query and key (B, H, L, d), value (B, H, L, dv), real (B, L), state (B, H, d, m) -> (B, H, L, dv),
    (B, H, d, m), where m is dv, or dv + 1 with normalize. Source: Katharopoulos et al. 2020.
    """
    batch, heads, length, width = query.shape
    ones = np.ones((batch, heads, length, int(normalize)), value.dtype)
    value = np.concatenate((value, ones), -1)
    states = np.zeros((batch, heads, width, value.shape[-1]), query.dtype)
    states = states if state is None else state.copy()
    output = np.zeros_like(value)
    for b, h, t in np.ndindex(batch, heads, length):
        if real is None or real[b, t]:
            states[b, h] += np.outer(features(key[b, h, t], feature_map), value[b, h, t])
        for j in range(value.shape[-1]):
            output[b, h, t, j] = dot(features(query[b, h, t], feature_map), states[b, h, :, j])
    if normalize:
        total = output[..., -1:]
        output = output[..., :-1] / np.where(total == 0, 1, total)
    return output, states
