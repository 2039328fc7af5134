"""The slow truth of differential attention: pair by pair, query by query."""

from __future__ import annotations

import numpy as np

from .attention import _wide, dot, softmax


def differential_attention(query, key, value, lambda_, *, causal=False):
    """For each pair of heads the weights of the first minus lambda times those of the second.

    Shapes: query (B, H, L, d), key (B, G, S, d), value (B, G, S, dv), lambda_ () -> (B, H/2, L, 2 dv).
    Source: Differential Transformer; transformers' DiffLlamaAttention.
    """
    query, key, value, lambda_ = map(_wide, (query, key, value, lambda_))
    batch, heads, length, d = query.shape
    groups, keys, d_value = value.shape[1:]
    output = np.zeros((batch, heads // 2, length, 2 * d_value), query.dtype)
    for b, pair, i in np.ndindex(batch, heads // 2, length):
        last = i + keys - length if causal else keys - 1
        weights = []
        for head in (pair, pair + heads // 2):
            own = key[b, head * groups // heads]
            weights.append(
                softmax(
                    np.array([dot(query[b, head, i], own[j]) / np.sqrt(d) for j in range(last + 1)])
                )
            )
        group = pair * groups // heads
        for j in range(last + 1):
            both = np.concatenate((value[b, group, j], value[b, group + groups // 2, j]))
            output[b, pair, i] += (weights[0][j] - lambda_ * weights[1][j]) * both
    return output
