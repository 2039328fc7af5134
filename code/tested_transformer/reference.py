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


# --- Multi-head attention and the cache -----------------------------------------------------------


def multi_head(
    x, w_query, w_key, w_value, w_output, num_heads, *, context=None, mask=None, causal=False,
    num_kv_heads=None,
):  # fmt: skip
    """Sample by sample and head by head: d columns of each matrix, attention, side by side, w_output.

    Shapes: x (B, L, D), context (B, S, Dc), weights (D, D), (Dc, G d), (Dc, G d), (D, D), mask
    broadcastable to (B, H, L, S) -> (B, L, D). Source: Vaswani et al. 2017, section 3.2.2.
    """
    x = _wide(x)
    context = x if context is None else _wide(context)
    d, groups = w_query.shape[1] // num_heads, num_kv_heads or num_heads
    shape = (len(x), num_heads, x.shape[1], context.shape[1])
    mask = np.broadcast_to(True if mask is None else mask, shape)
    output = np.zeros((*x.shape[:2], w_output.shape[1]), dtype=x.dtype)
    for b in range(len(x)):
        heads = []
        for h in range(num_heads):
            own = slice(h * d, (h + 1) * d)
            group = h // (num_heads // groups)
            shared = slice(group * d, (group + 1) * d)
            query = matmul(x[b], w_query[:, own])
            key, value = (matmul(context[b], w[:, shared]) for w in (w_key, w_value))
            heads.append(attention(query, key, value, mask=mask[b, h], causal=causal))
        output[b] = matmul(np.concatenate(heads, axis=1), w_output)
    return output


def cached_attention(query, key, value, chunks, real, rows):
    """Causal attention of each token to itself and the real ones before it, after the rows moved.

    After the first chunk the batch is rearranged: row b goes on where row rows[b] was, if rows are
    given. Shapes: (B, H, L, d), (B, G, L, d), (B, G, L, dv), real (B, L) -> (B, H, L, dv).
    """
    first = chunks[0]
    keep = np.ones((len(query), query.shape[2]), dtype=bool) if real is None else real
    start = [a[:, :, :first] for a in (query, key, value)]
    before = attention(*start, mask=keep[:, None, None, :first], causal=True)
    rows = range(len(query)) if rows is None else rows
    key, value = (np.concatenate([a[rows][:, :, :first], a[:, :, first:]], 2) for a in (key, value))
    keep = np.concatenate([keep[rows][:, :first], keep[:, first:]], 1)
    after = attention(query[:, :, first:], key, value, mask=keep[:, None, None], causal=True)
    return np.concatenate([before, after], axis=2)


# --- Norms and residual connections ---------------------------------------------------------------


def layer_norm(x, weight, bias, eps=1e-5):
    """(x - mean) / sqrt(var + eps) weight + bias, each token by its own D numbers.

    Shapes: (*batch, D), (D), (D) -> (*batch, D). Source: Ba et al. 2016, equations 3 and 4.
    """
    x, weight, bias = map(_wide, (x, weight, bias))
    output = np.zeros_like(x)
    for token in np.ndindex(x.shape[:-1]):
        numbers = x[token]
        mean = sum(numbers) / len(numbers)
        variance = sum((n - mean) ** 2 for n in numbers) / len(numbers)
        for i, n in enumerate(numbers):
            output[(*token, i)] = (n - mean) / np.sqrt(variance + eps) * weight[i] + bias[i]
    return output


def rms_norm(x, weight, eps=1e-6):
    """X / sqrt(mean of x^2 + eps) weight. Shapes: (*batch, D), (D) -> (*batch, D).

    Source: Zhang and Sennrich 2019, equation 4.
    """
    x, weight = map(_wide, (x, weight))
    output = np.zeros_like(x)
    for token in np.ndindex(x.shape[:-1]):
        square = sum(n * n for n in x[token]) / x.shape[-1]
        for i, n in enumerate(x[token]):
            output[(*token, i)] = n / np.sqrt(square + eps) * weight[i]
    return output


def batch_norm(x, weight, bias, eps=1e-5):
    """Each feature by its mean and variance over all tokens of all samples.

    Shapes: (*batch, D), (D), (D) -> (*batch, D). Source: Ioffe and Szegedy 2015, algorithm 1.
    """
    x, weight, bias = map(_wide, (x, weight, bias))
    output = np.zeros_like(x)
    tokens = list(np.ndindex(x.shape[:-1]))
    for i in range(x.shape[-1]):
        mean = sum(x[(*t, i)] for t in tokens) / len(tokens)
        variance = sum((x[(*t, i)] - mean) ** 2 for t in tokens) / len(tokens)
        for t in tokens:
            output[(*t, i)] = (x[(*t, i)] - mean) / np.sqrt(variance + eps) * weight[i] + bias[i]
    return output


def residual_stack(x, w, gain, wiring, alpha=1.0):
    """A stack of N sublayers f_n(x) = tanh(x w_n), wired with norms in one of four ways.

    Shapes: x (L, D), w (N, D, D), gain (N + 1, D), the last for a final norm -> (L, D).
    Source: post: Vaswani et al. 2017; pre: Xiong et al. 2020; deep: Wang et al. 2022; dual: Xie et
    al. 2023.
    """
    x, w, gain = map(_wide, (x, w, gain))
    total = x
    for matrix, g in zip(w, gain[:-1], strict=True):
        if wiring == "pre":
            x = x + np.tanh(matmul(layer_norm(x, g, 0 * g), matrix))
            continue
        change = np.tanh(matmul(x, matrix))
        total = total + change
        x = layer_norm((alpha if wiring == "deep" else 1) * x + change, g, 0 * g)
    if wiring == "pre":
        return layer_norm(x, gain[-1], 0 * gain[-1])
    return x + layer_norm(total, gain[-1], 0 * gain[-1]) if wiring == "dual" else x


# --- The feed-forward network ---------------------------------------------------------------------


def error_function(z):
    """erf(z) as 2/sqrt(pi) exp(-z^2) (z + 2 z^3/3 + 4 z^5/15 + ...), a series without cancellation.

    >>> round(float(error_function(np.float64(1.0))), 6)
    0.842701
    """
    size = min(abs(z), type(z)(7))  # beyond 7 it is 1 in every dtype here
    term = total = size
    n = 0
    while term > total * np.finfo(type(total)).eps / 8:
        n += 1
        term = term * 2 * size * size / (2 * n + 1)
        total = total + term
    half_pi = 2 * np.arctan(type(z)(1))
    return np.sign(z) * np.sqrt(2 / half_pi) * np.exp(-size * size) * total


def bend(x, activation):
    """One number through the activation of that name. Sources: as in `feed_forward.py`."""
    one = type(x)(1)
    if activation == "relu":
        return max(x, 0 * one)
    if activation == "silu":
        return x / (1 + np.exp(-x))
    if activation == "gelu":
        return x * (1 + error_function(x / np.sqrt(2 * one))) / 2
    if activation == "gelu_tanh":
        pi = 4 * np.arctan(one)
        return x * (1 + np.tanh(np.sqrt(2 / pi) * (x + 44715 * one / 10**6 * x**3))) / 2
    raise ValueError(activation)


def feed_forward(x, w_widen, b_widen, w_narrow, b_narrow, activation="relu"):
    """Each token alone: d_ff dot products, each bent, then D dot products of these.

    Shapes: (*batch, D), (D, d_ff), (d_ff), (d_ff, D), (D) -> (*batch, D).
    Source: Vaswani et al. 2017, equation 2.
    """
    x, w_widen, b_widen, w_narrow, b_narrow = map(_wide, (x, w_widen, b_widen, w_narrow, b_narrow))
    output = np.zeros((*x.shape[:-1], len(b_narrow)), dtype=x.dtype)
    for token in np.ndindex(x.shape[:-1]):
        pairs = zip(w_widen.T, b_widen, strict=True)
        wide = np.array([bend(dot(x[token], w) + b, activation) for w, b in pairs], dtype=x.dtype)
        output[token] = [dot(wide, w) + b for w, b in zip(w_narrow.T, b_narrow, strict=True)]
    return output


def swiglu(x, w_gate, w_widen, w_narrow):
    """Each token alone: two rows of d_ff dot products, one bent by SiLU, multiplied, then narrowed.

    Shapes: (*batch, D), (D, d_ff), (D, d_ff), (d_ff, D) -> (*batch, D).
    Source: Shazeer 2020, equation 6.
    """
    x, w_gate, w_widen, w_narrow = map(_wide, (x, w_gate, w_widen, w_narrow))
    output = np.zeros((*x.shape[:-1], w_narrow.shape[1]), dtype=x.dtype)
    for token in np.ndindex(x.shape[:-1]):
        wide = [
            bend(dot(x[token], gate), "silu") * dot(x[token], value)
            for gate, value in zip(w_gate.T, w_widen.T, strict=True)
        ]
        output[token] = [dot(np.array(wide, dtype=x.dtype), w) for w in w_narrow.T]
    return output


def sinusoidal_positions(positions, d_model, base=10000.0, layout="interleaved"):
    """sin and cos of pos / base^(2i/D) for each pair i, one entry at a time, in longdouble.

    Shapes: (*batch) -> (*batch, D). Source: Vaswani et al. 2017, section 3.5.
    """
    positions = np.asarray(positions)
    table = np.zeros((*positions.shape, d_model), dtype=np.longdouble)
    for *place, column in np.ndindex(table.shape):
        pair, is_cosine = divmod(column, 2)
        if layout == "halves":
            sines = (d_model + 1) // 2
            pair, is_cosine = column % sines, column >= sines
        exponent = np.longdouble(2 * pair) / d_model
        angle = positions[tuple(place)] / np.longdouble(base) ** exponent
        table[(*place, column)] = np.cos(angle) if is_cosine else np.sin(angle)
    return table


def shift_matrix(offset, d_model, base=10000.0, layout="interleaved"):
    """A rotation by offset x frequency for each pair, zero elsewhere. Shapes: numbers -> (D, D)."""
    turn = np.zeros((d_model, d_model), dtype=np.longdouble)
    for pair in range(d_model // 2):
        angle = offset / np.longdouble(base) ** (np.longdouble(2 * pair) / d_model)
        sine, cosine = 2 * pair, 2 * pair + 1
        if layout == "halves":
            sine, cosine = pair, pair + d_model // 2
        turn[sine, sine] = turn[cosine, cosine] = np.cos(angle)
        turn[sine, cosine], turn[cosine, sine] = np.sin(angle), -np.sin(angle)
    return turn


def segmented_embedding(
    tokens, segments, token_table, segment_table, position_table, norm_weight, norm_bias
):
    """Three rows added, then mean 0 and variance 1. Shapes: (B, L) twice, tables -> (B, L, D).

    Source: Devlin et al. 2019, section 3.
    """
    tables = [_wide(t) for t in (token_table, segment_table, position_table)]
    weight, bias = _wide(norm_weight), _wide(norm_bias)
    output = np.zeros((*tokens.shape, len(weight)), dtype=weight.dtype)
    for b, place in np.ndindex(tokens.shape):
        rows = (tokens[b, place], segments[b, place], place)
        x = sum(table[row] for table, row in zip(tables, rows, strict=True))
        mean = sum(x) / len(x)
        variance = sum((number - mean) ** 2 for number in x) / len(x)
        output[b, place] = (x - mean) / np.sqrt(variance + x.dtype.type("1e-12")) * weight + bias
    return output


def relative_attention(query, key, value, key_table, value_table=None, mask=None, causal=False):
    """Attention of one sequence, each pair with the vectors of its clipped distance added.

    Shapes: (*batch, L, d), (*batch, S, d), (*batch, S, dv), (2K + 1, d), (2K + 1, dv) ->
    (*batch, L, dv). Source: Shaw et al. 2018, equations 3 to 5.
    """
    query, key, value, key_table = map(_wide, (query, key, value, key_table))
    no_table = np.zeros((len(key_table), value.shape[-1]))
    value_table = _wide(no_table if value_table is None else value_table)
    clip = len(key_table) // 2
    length, keys = query.shape[-2], key.shape[-2]
    allowed = np.broadcast_to(True if mask is None else mask, (*query.shape[:-1], keys))
    output = np.zeros((*query.shape[:-1], value.shape[-1]), dtype=query.dtype)
    for *batch, i in np.ndindex(query.shape[:-1]):
        rows = [min(max(j - (i + keys - length), -clip), clip) + clip for j in range(keys)]
        k, v, q = key[tuple(batch)], value[tuple(batch)], query[(*batch, i)]
        scores = [dot(q, k[j] + key_table[row]) / np.sqrt(q.dtype.type(len(q)))
                  for j, row in enumerate(rows)]  # fmt: skip
        seen = [allowed[(*batch, i, j)] and is_allowed(i, j, length, keys, causal=causal)
                for j in range(keys)]  # fmt: skip
        weights = masked_softmax(np.array(scores, dtype=query.dtype), np.array(seen))
        for j, row in enumerate(rows):
            output[(*batch, i)] += weights[j] * (v[j] + value_table[row])
    return output


# --- The whole model ------------------------------------------------------------------------------


def transformer(source, target, weights, config):
    """Logits (B, L, V) of source (B, S) and target (B, L), with weights by name; post- or pre-norm.

    Names are those of `Transformer`, matrices (out, in). config: a TransformerConfig with sinusoidal
    positions or none, and LayerNorm. Source: Vaswani et al. 2017, section 3.
    """
    weights = {name: _wide(array) for name, array in weights.items()}
    seen, written = (_words_seen(ids, config.pad_id) for ids in (source, target))
    memory = embedded(source, weights["source_embedding.table.weight"], config)
    memory = stack(memory, weights, "encoder", config, seen)
    language = "source" if config.target_vocab is None else "target"
    table = weights[f"{language}_embedding.table.weight"]
    x = stack(embedded(target, table, config), weights, "decoder", config, written, memory, seen)
    output = {"w.weight": table, "w.bias": weights.get("output.bias", 0 * table[:, 0])}
    if not config.tied_output:
        output["w.weight"] = weights["output.weight"]
    return linear(x, output, "w")


def _words_seen(ids, pad_id):
    """The mask (B, 1, 1, S) that hides padding; True everywhere if no token is padding."""
    pad_id = np.iinfo(ids.dtype).min if pad_id is None else pad_id
    return padding_mask_from_tokens(ids, pad_id)


def embedded(ids, table, config):
    """Each id's row times sqrt(D), plus its position among the words. Shapes: (B, L) -> (B, L, D)."""
    table = _wide(table)
    width = table.shape[1]
    scale = np.sqrt(table.dtype.type(width)) if config.scale_embedding else 1
    x = np.zeros((*ids.shape, width), dtype=table.dtype)
    for b, row in enumerate(ids):
        place = 0
        for i, token in enumerate(row):
            x[b, i] = table[token] * scale
            if config.positions == "sinusoidal":
                x[b, i] += sinusoidal_positions(place, width, layout=config.position_layout)
            place += token != config.pad_id
    return x


def stack(x, weights, name, config, mask, memory=None, memory_mask=None):
    """All layers of the encoder, or of the decoder if there is a memory. Shapes: (B, L, D)."""
    layers = config.num_encoder_layers if memory is None else config.num_decoder_layers
    for number in range(layers):
        at = f"{name}.layers.{number}"
        own = (f"{at}.attention", config.num_heads, mask, memory is not None)
        sublayers = [lambda x, own=own: heads(x, x, weights, *own)]
        if memory is not None:
            cross = (f"{at}.cross_attention", config.num_heads, memory_mask, False)
            sublayers.append(lambda x, cross=cross: heads(x, memory, weights, *cross))
        sublayers.append(lambda x, at=at: network(x, weights, at, config.activation))
        for i, sublayer in enumerate(sublayers):
            norm = f"{at}.residuals.{i}.norm"
            if config.wiring == "pre":
                x = x + sublayer(normed(x, weights, norm, config.norm_eps))
            else:
                x = normed(x + sublayer(x), weights, norm, config.norm_eps)
    return normed(x, weights, f"{name}.norm", config.norm_eps) if config.final_norm else x


def heads(x, context, weights, name, num_heads, mask, causal):
    """Attention from x to the context, with biases, each head on its own columns. (B, L, D)."""
    parts = (("query", x), ("key", context), ("value", context))
    parts = [linear(a, weights, f"{name}.{part}") for part, a in parts]
    query, key, value = (np.stack(np.split(a, num_heads, axis=-1), axis=1) for a in parts)
    found = attention(query, key, value, mask=mask, causal=causal)  # B H L d
    return linear(np.concatenate(list(found.swapaxes(0, 1)), axis=-1), weights, f"{name}.output")


def network(x, weights, at, activation):
    """The feed-forward network of the layer at that place. Shapes: (B, L, D)."""
    widen, narrow = (weights[f"{at}.feed_forward.{part}.weight"].T for part in ("widen", "narrow"))
    biases = [weights.get(f"{at}.feed_forward.{part}.bias", 0 * w[0])
              for part, w in (("widen", widen), ("narrow", narrow))]  # fmt: skip
    return feed_forward(x, widen, biases[0], narrow, biases[1], activation)


def normed(x, weights, name, eps):
    """LayerNorm with the weights of that name; without a shift if there is none."""
    weight = weights[f"{name}.weight"]
    return layer_norm(x, weight, weights.get(f"{name}.bias", 0 * weight), eps)


def linear(x, weights, name):
    """The map x W^T + b, with W (out, in); without b if there is none. Shapes: (*batch, in) -> (*batch, out)."""
    matrix = weights[f"{name}.weight"]
    found = matmul(x.reshape(-1, x.shape[-1]), matrix.T).reshape(*x.shape[:-1], len(matrix))
    return found + weights.get(f"{name}.bias", 0 * matrix[:, 0])


# --- Training (chapter 10) ------------------------------------------------------------------------


def word_target(word, vocab, smoothing=0.0, dtype=np.float64):
    """What label smoothing asks for: 1 - e for the word, and e / V for every word, it included.

    Source: Szegedy et al. 2016, section 7.

    >>> word_target(1, 4, 0.2).round(2).tolist()
    [0.05, 0.85, 0.05, 0.05]
    """
    target = np.full(vocab, dtype(smoothing) / vocab, dtype=dtype)
    target[word] += 1 - dtype(smoothing)
    return target


def cross_entropy(logits, expected, ignore=0, label_smoothing=0.0, reduction="mean"):
    """-sum of target x log p, word by word, over all words that are not `ignore`.

    Shapes: logits (*batch, V), expected (*batch) -> a number. Source: Vaswani et al. 2017, section 5.4.
    """
    logits = _wide(logits)
    losses = []
    for place in np.ndindex(expected.shape):
        if expected[place] != ignore:
            row = logits[place]
            top = row.max()
            log_p = row - top - np.log(np.exp(row - top).sum())
            target = word_target(expected[place], len(row), label_smoothing, logits.dtype.type)
            losses.append(-(target * log_p).sum())
    total = sum(losses)
    return total / len(losses) if reduction == "mean" else total


def paper_rate(step, d_model, warmup=4000, factor=1.0):
    """The paper's learning rate, its two halves told apart. Source: Vaswani et al. 2017, equation 3."""
    peak = factor / np.sqrt(d_model * warmup)
    return peak * step / warmup if step <= warmup else peak * np.sqrt(warmup / step)


def one_cycle_rate(step, total, peak, warmup=0.3, start_ratio=25.0, end_ratio=1e4):
    """Half a cosine up to the peak, half a cosine down. Source: Smith and Topin 2019, as in torch."""
    first, turn, done = peak / start_ratio, warmup * total, step - 1
    if step <= turn:
        share, low = done / (turn - 1), first
    else:
        share, low = 1 - (step - turn) / (total - turn), first / end_ratio
    return low + (peak - low) * (1 - np.cos(np.pi * share)) / 2


def gru_step(x, state, weights, name, end=""):
    """The next state of a GRU, with torch's names: three gates, then old and new are mixed.

    Shapes: x (in), state (D) -> (D). Source: Cho et al. 2014, equations 5 to 8, except that the
    reset gate stands behind the state's matrix, as in torch.
    """

    def gates(kind, vector):
        matrix, bias = (weights[f"{name}.{part}_{kind}{end}"] for part in ("weight", "bias"))
        return np.split(matmul(vector[None], matrix.T)[0] + bias, 3)

    (reset_x, update_x, new_x), (reset_h, update_h, new_h) = gates("ih", x), gates("hh", state)
    reset, update = (1 / (1 + np.exp(-a)) for a in (reset_x + reset_h, update_x + update_h))
    return (1 - update) * np.tanh(new_x + reset * new_h) + update * state


def recurrent_memory(source, weights):
    """One sentence without padding, read in both directions. Shapes: (S) -> (S, D)."""
    words = [weights["source_embedding.weight"][token] for token in source]
    halves = []
    for order, end in ((slice(None), "_l0"), (slice(None, None, -1), "_l0_reverse")):
        state, states = 0 * weights[f"encoder.bias_hh{end}"][: len(words[0]) // 2], []
        for word in words[order]:
            state = gru_step(word, state, weights, "encoder", end)
            states.append(state)
        halves.append(np.array(states)[order])
    return np.concatenate(halves, axis=-1)


def recurrent_translator(source, target, weights):
    """One sentence through a GRU that reads and a GRU that writes, word by word.

    Shapes: source (S), target (L), without padding -> logits (L, V), and the weights (L, S) of the
    attention, or None if the weights have none. Source: Bahdanau et al. 2015, appendix A.
    """
    weights = {name: _wide(array) for name, array in weights.items()}
    memory = recurrent_memory(source, weights)
    state = np.concatenate(np.split(memory[-1], 2)[:1] + np.split(memory[0], 2)[1:])
    matrices = [weights.get(f"attention.{name}.weight") for name in ("w_query", "w_key", "w_v")]
    logits, looked = [], []
    for token in target:
        word, context = weights["target_embedding.weight"][token], memory[0, :0]
        if matrices[0] is not None:
            query, key, w_v = matrices
            looked.append(softmax(additive_scores(state[None], memory, query, key, w_v[0])[0]))
            context = weighted_sum(looked[-1][None], memory)[0]
        state = gru_step(np.concatenate([word, context]), state, weights, "decoder")
        logits.append(linear(np.concatenate([state, context]), weights, "output"))
    return np.array(logits), np.array(looked) if looked else None


# --- Generating (chapter 11) ----------------------------------------------------------------------


def top_k(logits, k):
    """A word stays if fewer than k of its row are likelier; the rest is -inf. Shapes: (B, V)."""
    logits = _wide(logits)
    kept = np.full_like(logits, -np.inf)
    for b, row in enumerate(logits):
        for v, score in enumerate(row):
            if sum(other > score for other in row) < k:
                kept[b, v] = score
    return kept


def top_p(logits, p):
    """The likeliest words stay, one after the other, until together they have p. Shapes: (B, V)."""
    logits = _wide(logits)
    kept = np.full_like(logits, -np.inf)
    for b, row in enumerate(logits):
        probability, total = softmax(row), 0.0
        for v in sorted(range(len(row)), key=lambda v, row=row: -row[v]):
            if total < p:
                kept[b, v] = row[v]
            total += probability[v]
    return kept


def repetition(logits, said, penalty):
    """Each word that was said pays once: s / penalty above 0, s * penalty below. Shapes: (B, V)."""
    logits = _wide(logits).copy()
    for b, words in enumerate(said):
        for v in set(words.tolist()):
            logits[b, v] = logits[b, v] / penalty if logits[b, v] > 0 else logits[b, v] * penalty
    return logits


def greedy(table, start, max_new, eos, padding):
    """After each word the likeliest next, until eos. Shapes: (V, V), (B, L) -> (B, max_new)."""
    rows = []
    for first in start[:, -1]:
        words = []
        while len(words) < max_new and eos not in words:
            words.append(int(np.argmax(table[words[-1] if words else first])))
        rows.append(words + [padding] * (max_new - len(words)))
    return np.array(rows)


def beam_search(table, start, num_beams, max_new, length_penalty, eos):
    """The best (score, words) that a beam of that width meets; table (N, V, V).

    The table scores, for each place in the sentence, the next word after each word. The search never
    stops early, and forgets no sentence that ended among the num_beams best steps.
    """
    running, ended = [(0.0, [])], []
    for length in range(1, max_new + 1):
        steps = []
        for score, words in running:
            gains = np.log(softmax(table[length - 1, words[-1] if words else start]))
            steps += [(score + gain, [*words, word]) for word, gain in enumerate(gains)]
        steps.sort(key=lambda step: -step[0])
        for score, words in steps[:num_beams]:
            if words[-1] == eos or length == max_new:
                ended.append((score / length**length_penalty, words))
        running = [step for step in steps if step[1][-1] != eos][:num_beams]
    return max(ended)


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
