"""The slow truth of attention: NumPy, loops, the formula as it is written."""

from __future__ import annotations

import numpy as np


def _wide(array) -> np.ndarray:
    array = np.asarray(array)
    return array if array.dtype == np.longdouble else array.astype(np.float64)


def dot(a, b):
    """Dot product of two vectors, summed in a loop."""
    total = a.dtype.type(0)
    for x, y in zip(a, b, strict=True):
        total += x * y
    return total


def softmax(scores):
    """Softmax of one row; a row of nothing but -inf gives zeros. Source: the definition.

    >>> softmax(np.array([0.0, np.log(3.0)])).round(2).tolist()
    [0.25, 0.75]
    """
    scores = _wide(scores)
    top = max((s for s in scores), default=-np.inf)
    if top == -np.inf:
        return np.zeros_like(scores)
    exponentials = [np.exp(s - top) for s in scores]
    total = sum(exponentials)
    return np.array([e / total for e in exponentials], dtype=scores.dtype)


def masked_softmax(scores, allowed=None):
    """Softmax of each row over its allowed keys. Shapes: (..., L, S), mask broadcastable."""
    scores = _wide(scores)
    allowed = np.broadcast_to(True if allowed is None else allowed, scores.shape)
    weights = np.zeros_like(scores)
    for row in np.ndindex(scores.shape[:-1]):
        hidden = [-np.inf if not a else s for s, a in zip(scores[row], allowed[row], strict=True)]
        weights[row] = softmax(np.array(hidden, dtype=scores.dtype))
    return weights


def weighted_sum(weights, value):
    """Each row of weights times the values. Shapes: (..., L, S), (..., S, dv) -> (..., L, dv)."""
    weights, value = _wide(weights), _wide(value)
    output = np.zeros((*weights.shape[:-1], value.shape[-1]), dtype=value.dtype)
    for row in np.ndindex(weights.shape[:-1]):
        for j, weight in enumerate(weights[row]):
            output[row] += weight * value[row[:-1]][j]
    return output


def is_allowed(i, j, num_queries, num_keys, *, causal=False, window=None, length=None):
    """May query i see key j? The rules of causal (bottom-right), window and length, one by one."""
    steps_back = i + num_keys - num_queries - j
    if causal and steps_back < 0:
        return False
    if window is not None and abs(steps_back) >= window:
        return False
    return length is None or j < length


def attention(
    query, key, value, *, mask=None, bias=None, causal=False, window=None, key_lengths=None,
    alibi_slopes=None, scale=None, return_weights=False,
):  # fmt: skip
    """softmax(q.k scale + bias) over the allowed keys, times the values: query by query, key by key.

    Shapes: (*batch, L, d), (*batch, S, d), (*batch, S, dv) -> (*batch, L, dv); with four axes
    query head h reads KV head h // (H / G). Source: Vaswani et al. 2017, equation 1.
    """
    query, key, value = _wide(query), _wide(key), _wide(value)
    shape = (*query.shape[:-1], key.shape[-2])  # *batch L S
    scale = (
        1 / query.dtype.type(query.shape[-1]) ** query.dtype.type(0.5) if scale is None else scale
    )
    mask = np.broadcast_to(True if mask is None else mask, shape)
    bias = np.broadcast_to(_wide(0.0 if bias is None else bias), shape)
    scores = np.full(shape, -np.inf, dtype=query.dtype)
    for *batch, i, j in np.ndindex(shape):
        at, kv = tuple(batch), key_value_index(batch, query, key)
        length = None if key_lengths is None else key_lengths[batch[0]]
        rules = {"causal": causal, "window": window, "length": length}
        if mask[at][i, j] and is_allowed(i, j, *shape[-2:], **rules):
            scores[at][i, j] = dot(query[at][i], key[kv][j]) * scale + bias[at][i, j]
            if alibi_slopes is not None:
                slope = query.dtype.type(alibi_slopes[batch[-1]])
                scores[at][i, j] -= slope * abs(i + shape[-1] - shape[-2] - j)
    weights = masked_softmax(scores)
    output = np.zeros((*shape[:-1], value.shape[-1]), dtype=query.dtype)
    for batch in np.ndindex(shape[:-2]):
        output[batch] = weighted_sum(weights[batch], value[key_value_index(batch, query, key)])
    return (output, weights) if return_weights else output


def key_value_index(batch, query, key):
    """Which key/value batch entry serves this query batch entry: itself, or its group's head."""
    if query.ndim != 4:
        return tuple(batch)
    b, head = batch
    return b, head // (query.shape[1] // key.shape[1])


def self_attention(x, w_query, w_key, w_value):
    """Attention of a sequence to itself. Shapes: x (L, D), weights (D, d) -> (L, dv)."""
    x = _wide(x)
    return attention(matmul(x, w_query), matmul(x, w_key), matmul(x, w_value))


def matmul(a, b):
    """Matrix product by its definition. Shapes: (n, m), (m, p) -> (n, p)."""
    a, b = _wide(a), _wide(b)
    return np.array([[dot(row, column) for column in b.T] for row in a]).reshape(len(a), b.shape[1])
