"""The slow truth: each formula once more, in NumPy, float64 and loops, with nothing clever.

The package is fast and general; this file is neither. It exists to be read against the papers and
then believed: everything else is compared with it. Arrays of longdouble stay longdouble, which is
how float64 itself is judged.
"""

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
    query head h reads key head h // (H / G). Source: Vaswani et al. 2017, equation 1.
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


def causal_mask(num_queries, num_keys=None):
    """Entry (i, j) is True where key j is not in the future of query i, aligned bottom-right."""
    num_keys = num_queries if num_keys is None else num_keys
    return _mask(num_queries, num_keys, causal=True)


def window_mask(num_queries, num_keys=None, *, window):
    """Entry (i, j) is True where key j is fewer than `window` steps from query i."""
    num_keys = num_queries if num_keys is None else num_keys
    return _mask(num_queries, num_keys, window=window)


def _mask(num_queries, num_keys, **rules):
    mask = np.zeros((num_queries, num_keys), dtype=bool)
    for i, j in np.ndindex(mask.shape):
        mask[i, j] = is_allowed(i, j, num_queries, num_keys, **rules)
    return mask


def padding_mask(lengths, num_keys):
    """Entry (b, 1, 1, j) is True where j is below the length of sample b."""
    mask = np.zeros((len(lengths), 1, 1, num_keys), dtype=bool)
    for b, _, _, j in np.ndindex(mask.shape):
        mask[b, 0, 0, j] = j < lengths[b]
    return mask


def padding_mask_from_tokens(tokens, pad_id):
    """Entry (b, 1, 1, j) is True where token j of sample b is no padding."""
    mask = np.zeros((len(tokens), 1, 1, tokens.shape[1]), dtype=bool)
    for b, _, _, j in np.ndindex(mask.shape):
        mask[b, 0, 0, j] = tokens[b, j] != pad_id
    return mask


def prefix_mask(prefix_lengths, num_tokens):
    """Entry (b, 1, i, j) is True where j is in the prefix of sample b, or not after i."""
    mask = np.zeros((len(prefix_lengths), 1, num_tokens, num_tokens), dtype=bool)
    for b, _, i, j in np.ndindex(mask.shape):
        mask[b, 0, i, j] = j < prefix_lengths[b] or j <= i
    return mask


def document_mask(document_ids):
    """Entry (b, 1, i, j) is True where tokens i and j of sample b are of one document."""
    samples, length = document_ids.shape
    mask = np.zeros((samples, 1, length, length), dtype=bool)
    for b, _, i, j in np.ndindex(mask.shape):
        mask[b, 0, i, j] = document_ids[b, i] == document_ids[b, j]
    return mask


def softmax_jacobian(scores):
    """Entry (i, j) is the derivative of weight i with respect to score j: p_i (1 - p_i), or -p_i p_j."""
    p = softmax(scores)
    jacobian = np.zeros((len(p), len(p)), dtype=p.dtype)
    for i, j in np.ndindex(jacobian.shape):
        jacobian[i, j] = p[i] * (1 - p[i]) if i == j else -p[i] * p[j]
    return jacobian


# --- Scaling (chapter 3) --------------------------------------------------------------------------


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
