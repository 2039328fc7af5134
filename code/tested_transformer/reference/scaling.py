"""The slow truth of the softmax, its derivative and the scale."""

from __future__ import annotations

import numpy as np

from .attention import _wide, dot, softmax


def softmax_jacobian(scores):
    """Entry (i, j) is the derivative of weight i with respect to score j: p_i (1 - p_i), or -p_i p_j."""
    p = softmax(scores)
    jacobian = np.zeros((len(p), len(p)), dtype=p.dtype)
    for i, j in np.ndindex(jacobian.shape):
        jacobian[i, j] = p[i] * (1 - p[i]) if i == j else -p[i] * p[j]
    return jacobian


def tempered_softmax(scores, *, temperature=1.0):
    """Softmax of every row of scores / temperature. Shapes: (*batch, S)."""
    scores = _wide(scores)
    weights = np.zeros_like(scores)
    for row in np.ndindex(scores.shape[:-1]):
        weights[row] = softmax(scores[row] / scores.dtype.type(temperature))
    return weights


def jacobian_of_weights(weights):
    """diag(p) - p p^T of every row of weights. Shapes: (*batch, S) -> (*batch, S, S)."""
    weights = _wide(weights)
    jacobian = np.zeros((*weights.shape, weights.shape[-1]), dtype=weights.dtype)
    for *batch, i, j in np.ndindex(jacobian.shape):
        p = weights[tuple(batch)]
        jacobian[(*batch, i, j)] = (p[i] if i == j else 0) - p[i] * p[j]
    return jacobian


def scaled_scores(query, key, *, scale=None):
    """q.k / sqrt(d) for each pair. Shapes: (*batch, L, d), (*batch, S, d) -> (*batch, L, S)."""
    query, key = _wide(query), _wide(key)
    if scale is None:
        scale = 1 / np.sqrt(query.dtype.type(query.shape[-1]))
    scores = np.zeros((*query.shape[:-1], key.shape[-2]), dtype=query.dtype)
    for *batch, i, j in np.ndindex(scores.shape):
        q, k = query[(*batch, i)], key[(*batch, j)]
        scores[(*batch, i, j)] = dot(q, k) * scale
    return scores
