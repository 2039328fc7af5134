"""The slow truth of composed heads: pair by pair of tokens, the matrix that mixes their heads."""

from __future__ import annotations

import numpy as np

from .attention import _wide, dot, softmax


def mixing_matrix(base, down, up, gate):
    """The H x H matrix of one side of a pair: its rank one parts, and the gate on the diagonal. Source: DCMHA."""
    matrix = np.zeros_like(base)
    heads = len(base)
    for m, n in np.ndindex(heads, heads):
        matrix[m, n] = dot(down[:, m], up[:, n]) + (gate[m] if m == n else 0)
    return matrix


def compose_heads(
    scores, base, query_down, query_up, query_gate, key_down, key_up, key_gate
):  # fmt: skip
    """For each pair the heads' numbers times base + the query's matrix + the key's. Shapes: scores (B, H, L, S), base
    (H, H), the query's (B, L, R, H) twice and (B, L, H), the key's (B, S, R, H) twice and (B, S, H). Source: DCMHA."""
    given = (scores, base, query_down, query_up, query_gate, key_down, key_up, key_gate)
    scores, base, *sides = map(_wide, given)
    query, key = sides[:3], sides[3:]
    mixed = np.zeros_like(scores)
    for b, i, j in np.ndindex(scores.shape[0], *scores.shape[2:]):
        matrix = base + mixing_matrix(base, *(part[b, i] for part in query))
        matrix = matrix + mixing_matrix(base, *(part[b, j] for part in key))
        for n in range(len(base)):
            mixed[b, n, i, j] = dot(scores[b, :, i, j], matrix[:, n])
    return mixed


def composed_attention(query, key, value, before, after, *, causal=False):
    """Scores, composed, softmax, composed, times the values. before and after: the arguments of `compose_heads` after
    scores. Shapes: query (B, H, L, d), key (B, H, S, d), value (B, H, S, dv). Source: DCMHA."""
    query, key, value = map(_wide, (query, key, value))
    length, keys = query.shape[2], key.shape[2]
    scores = np.zeros((*query.shape[:3], keys), query.dtype)
    for b, h, i, j in np.ndindex(scores.shape):
        scores[b, h, i, j] = dot(query[b, h, i], key[b, h, j]) / np.sqrt(
            query.dtype.type(query.shape[-1])
        )
    scores = compose_heads(scores, *before)
    weights = np.zeros_like(scores)
    for b, h, i in np.ndindex(query.shape[:3]):
        last = i + keys - length + 1 if causal else keys
        weights[b, h, i, :last] = softmax(scores[b, h, i, :last])
    weights = compose_heads(weights, *after)
    output = np.zeros((*query.shape[:3], value.shape[-1]), query.dtype)
    for b, h, i in np.ndindex(query.shape[:3]):
        for j in range(keys):
            output[b, h, i] += weights[b, h, i, j] * value[b, h, j]
    return output
