"""The slow truth of the other scoring functions, of hard and of local attention."""

from __future__ import annotations

import numpy as np

from .attention import _wide, dot, masked_softmax, softmax, weighted_sum


def additive_scores(query, key, w_query, w_key, w_v):
    """w_v . tanh(W_q q + W_k k) for each pair. Source: Bahdanau et al. 2015, appendix A.1.2.

    Shapes: (*batch, L, dq), (*batch, S, dk), (hidden, dq), (hidden, dk), (hidden) ->
    (*batch, L, S).
    """
    query, key, w_query, w_key, w_v = map(_wide, (query, key, w_query, w_key, w_v))
    scores = _pairs(query, key)
    for *batch, i, j in np.ndindex(scores.shape):
        q, k = query[(*batch, i)], key[(*batch, j)]
        for unit, v in enumerate(w_v):
            scores[(*batch, i, j)] += v * np.tanh(dot(w_query[unit], q) + dot(w_key[unit], k))
    return scores


def bilinear_scores(query, key, weight):
    """q^T W k for each pair, entry by entry of W. Source: Luong et al. 2015, section 3.1.

    Shapes: (*batch, L, dq), (*batch, S, dk), (dq, dk) -> (*batch, L, S).
    """
    query, key, weight = map(_wide, (query, key, weight))
    scores = _pairs(query, key)
    for *batch, i, j in np.ndindex(scores.shape):
        for m, n in np.ndindex(weight.shape):
            scores[(*batch, i, j)] += query[(*batch, i, m)] * weight[m, n] * key[(*batch, j, n)]
    return scores


def location_scores(query, weight):
    """Row j of W times the query: place j's score. Source: Luong et al. 2015, equation 8.

    Shapes: (*batch, L, d), (S, d) -> (*batch, L, S).
    """
    query, weight = _wide(query), _wide(weight)
    scores = np.zeros((*query.shape[:-1], len(weight)), dtype=query.dtype)
    for *batch, i, j in np.ndindex(scores.shape):
        scores[(*batch, i, j)] = dot(weight[j], query[(*batch, i)])
    return scores


def content_scores(query, key, sharpness=1.0):
    """Sharpness x cosine for each pair; 0 where a vector is 0. Source: Graves et al. 2014.

    Shapes: (*batch, L, d), (*batch, S, d), a number or (*batch, L) -> (*batch, L, S).
    """
    query, key = _wide(query), _wide(key)
    sharpness = np.broadcast_to(_wide(sharpness), query.shape[:-1])
    scores = _pairs(query, key)
    for *batch, i, j in np.ndindex(scores.shape):
        q, k = query[(*batch, i)], key[(*batch, j)]
        lengths = np.sqrt(dot(q, q)) * np.sqrt(dot(k, k))
        if lengths > 0:
            scores[(*batch, i, j)] = sharpness[(*batch, i)] * dot(q, k) / lengths
    return scores


def gaussian_scores(query, key, bandwidth):
    """-|q - k|^2 / (2 bandwidth^2) for each pair. Shapes: (*batch, L, d), (*batch, S, d)."""
    query, key, bandwidth = _wide(query), _wide(key), _wide(bandwidth)
    scores = _pairs(query, key)
    for *batch, i, j in np.ndindex(scores.shape):
        difference = query[(*batch, i)] - key[(*batch, j)]
        scores[(*batch, i, j)] = -dot(difference, difference) / (2 * bandwidth * bandwidth)
    return scores


def kernel_regression(query, key, value, bandwidth):
    """The mean of the values, each weighted by a Gaussian of its distance from the query.

    Shapes: (*batch, L, d), (*batch, S, d), (*batch, S, dv) -> (*batch, L, dv).
    Source: Nadaraya 1964; Watson 1964.
    """
    return weighted_sum(masked_softmax(gaussian_scores(query, key, bandwidth)), value)


def hard_attention(scores, value):
    """Each query takes the value with the best score, the first if there are several.

    Shapes: (*batch, L, S), (*batch, S, dv) -> (*batch, L, dv). Source: Xu et al. 2015, section 4.1.
    """
    scores, value = _wide(scores), _wide(value)
    output = np.zeros((*scores.shape[:-1], value.shape[-1]), dtype=value.dtype)
    for row in np.ndindex(scores.shape[:-1]):
        best = max(range(scores.shape[-1]), key=lambda j, row=row: scores[row][j])
        output[row] = value[row[:-1]][best]
    return output


def expected_cost(scores, costs):
    """The mean cost of a choice drawn by the softmax of the scores. Shapes: (S), (S) -> ()."""
    return dot(softmax(scores), _wide(costs))


def expected_cost_gradient(scores, costs, baseline=0.0):
    """Its gradient by the scores, as REINFORCE finds it: the mean over all choices, enumerated.

    A choice c, of probability p_c, contributes (cost_c - baseline) times the gradient of log p_c,
    which is 1 - p_c at c and -p_j elsewhere. Shapes: (S), (S) -> (S). Source: Williams 1992.
    """
    p, costs = softmax(scores), _wide(costs)
    gradient = np.zeros_like(p)
    for choice, j in np.ndindex(len(p), len(p)):
        log_gradient = (1 if j == choice else 0) - p[j]
        gradient[j] += p[choice] * (costs[choice] - baseline) * log_gradient
    return gradient


def predicted_centers(query, w_p, v_p, num_keys):
    """S sigmoid(v_p . tanh(W_p q)), where a query looks. Source: Luong et al. 2015, equation 9."""
    query, w_p, v_p = map(_wide, (query, w_p, v_p))
    centers = np.zeros(query.shape[:-1], dtype=query.dtype)
    for row in np.ndindex(centers.shape):
        hidden = [np.tanh(dot(w, query[row])) for w in w_p]
        centers[row] = num_keys / (1 + np.exp(-dot(v_p, np.array(hidden, dtype=query.dtype))))
    return centers


def local_weights(scores, centers, half_width, gaussian=False):
    """A softmax over the places with |s - p| <= D; for local-p times exp(-(s-p)^2 / (2 (D/2)^2)).

    Shapes: (*batch, L, S), (*batch, L) -> (*batch, L, S). Source: Luong et al. 2015, section 3.2.
    """
    scores, centers = _wide(scores), _wide(centers)
    window = np.zeros(scores.shape, dtype=bool)
    for *row, s in np.ndindex(scores.shape):
        window[(*row, s)] = abs(s - centers[tuple(row)]) <= half_width
    weights = masked_softmax(scores, window)
    if gaussian:
        sigma = scores.dtype.type(half_width) / 2
        for *row, s in np.ndindex(scores.shape):
            steps = (s - centers[tuple(row)]) / sigma
            weights[(*row, s)] *= np.exp(-steps * steps / 2)
    return weights


def _pairs(query, key):
    return np.zeros((*query.shape[:-1], key.shape[-2]), dtype=query.dtype)
