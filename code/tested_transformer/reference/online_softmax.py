"""The slow truth of the online softmax and of tiled attention."""

from __future__ import annotations

import numpy as np

from .attention import _wide, dot, is_allowed, masked_softmax, weighted_sum


def log_sum_exp(scores):
    """The logarithm of the sum of exponentials of one row; +inf, as kernels store it, for nothing.

    >>> float(np.exp(log_sum_exp(np.log([1.0, 3.0]))).round(9))
    4.0
    """
    scores = _wide(scores)
    top = max((s for s in scores), default=-np.inf)
    if top == -np.inf:
        return scores.dtype.type(np.inf)
    return top + np.log(sum(np.exp(s - top) for s in scores))


def online_softmax(scores, value, tile=None):
    """softmax(scores) value, and in one column more the log-sum-exp of each row; `tile` changes nothing.

    Shapes: (*batch, L, S), (*batch, S, dv) -> (*batch, L, dv + 1).
    """
    scores = _wide(scores)
    output = weighted_sum(masked_softmax(scores), value)
    lse = np.zeros((*scores.shape[:-1], 1), dtype=output.dtype)
    for row in np.ndindex(scores.shape[:-1]):
        lse[row] = log_sum_exp(scores[row])
    return np.concatenate([output, lse], axis=-1)


def tiled_attention(query, key, value, tile=None, causal=False):
    """Attention, and in one column more the log-sum-exp of each row's scores; `tile` changes nothing.

    Shapes: (*batch, L, d), (*batch, S, d), (*batch, S, dv) -> (*batch, L, dv + 1).
    """
    query, key = _wide(query), _wide(key)
    scores = np.full((*query.shape[:-1], key.shape[-2]), -np.inf, dtype=query.dtype)
    scale = 1 / query.dtype.type(query.shape[-1]) ** query.dtype.type(0.5)
    for *batch, i, j in np.ndindex(scores.shape):
        at = tuple(batch)
        if is_allowed(i, j, *scores.shape[-2:], causal=causal):
            scores[at][i, j] = dot(query[at][i], key[at][j]) * scale
    return online_softmax(scores, value)
