"""The slow truth of attention to fewer keys: projected (Linformer), estimated (Performer), landmarks (Nystrom)."""

from __future__ import annotations

import numpy as np

from .attention import dot, masked_softmax, matmul, weighted_sum


def linformer_attention(
    query, key, value, key_projection, value_projection, *, key_mask=None, scale=None
):
    """Each projected key is a sum of the real keys, weighted by a row of the projection; so is each value.

    Shapes: (B, H, L, d), (B, H, S, d), (B, H, S, dv), (H or 1, k, S) twice, key_mask (B, S) ->
    (B, H, L, dv). Source: Wang et al. 2020.
    """
    output = np.zeros((*query.shape[:3], value.shape[-1]), query.dtype)
    for b, h in np.ndindex(query.shape[:2]):
        real = np.flatnonzero(np.ones(key.shape[2], bool) if key_mask is None else key_mask[b])
        projected = []
        for vectors, projection in ((key, key_projection), (value, value_projection)):
            rows = projection[h if projection.shape[0] > 1 else 0]  # k S
            projected.append(matmul(rows[:, real], vectors[b, h][real]))
        scores = matmul(query[b, h], projected[0].T) * _scale(query, scale)
        output[b, h] = weighted_sum(masked_softmax(scores), projected[1])
    return output


def performer_attention(
    query, key, value, directions, *, causal=False, key_mask=None, scale=None, chunk_size=None
):
    """Each weight is the mean of exp(w q - |q|^2 / 2) exp(w k - |k|^2 / 2) over the directions w, normalized.

    q and k are scaled by the root of `scale`. chunk_size changes nothing. A query without keys gets 0.

    Shapes: (B, H, L, d), (B, H, S, d), (B, H, S, dv), (m, d), key_mask (B, S) -> (B, H, L, dv).
    Source: Choromanski et al. 2021.
    """
    root = _scale(query, scale) ** query.dtype.type(0.5)
    output = np.zeros((*query.shape[:3], value.shape[-1]), query.dtype)
    for b, h, i in np.ndindex(query.shape[:3]):
        logs = np.full((key.shape[2], len(directions)), -np.inf, query.dtype)
        for j, r in np.ndindex(logs.shape):
            if (causal and j > i) or (key_mask is not None and not key_mask[b, j]):
                continue
            q, k = root * query[b, h, i], root * key[b, h, j]
            logs[j, r] = dot(directions[r], q + k) - (dot(q, q) + dot(k, k)) / 2
        if np.isfinite(
            logs
        ).any():  # the largest is subtracted: numerator and denominator shrink alike
            weights = np.exp(logs - logs.max()).sum(1)
            output[b, h, i] = matmul(weights[None] / weights.sum(), value[b, h])[0]
    return output


def nystrom_attention(query, key, value, num_landmarks, *, iterations=6, key_mask=None, scale=None):
    """Columns, pseudo-inverse of the core, rows: landmarks are means of segments of the real tokens.

    Segment s has the real tokens number r with floor(r m / n) = s; a segment without tokens is left out.

    Shapes: (B, H, L, d) twice, (B, H, L, dv), key_mask (B, L) -> (B, H, L, dv). Source: Xiong et al. 2021.
    """
    output = np.zeros((*query.shape[:3], value.shape[-1]), query.dtype)
    for b, h in np.ndindex(query.shape[:2]):
        real = np.flatnonzero(np.ones(key.shape[2], bool) if key_mask is None else key_mask[b])
        if not len(real):
            continue
        segment = np.array([r * num_landmarks // len(real) for r in range(len(real))])
        used = sorted(set(segment))
        q, k, v = (each[b, h][real] for each in (query, key, value))
        query_landmarks, key_landmarks = (
            np.stack([each[segment == s].sum(0) / (segment == s).sum() for s in used])
            for each in (q, k)
        )
        size = _scale(query, scale)
        columns = masked_softmax(size * matmul(query[b, h], key_landmarks.T))
        core = masked_softmax(size * matmul(query_landmarks, key_landmarks.T))
        rows = masked_softmax(size * matmul(query_landmarks, k.T))
        output[b, h] = matmul(columns, matmul(iterative_pinv(core, iterations), matmul(rows, v)))
    return output


def iterative_pinv(matrix, iterations=6):
    """Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4, from the transpose over both norms of the matrix.

    Shapes: (m, m) -> (m, m). Source: Xiong et al. 2021.
    """
    largest_column = max(sum(abs(x) for x in column) for column in matrix.T)
    largest_row = max(sum(abs(x) for x in row) for row in matrix)
    inverse, one = (
        matrix.T / (largest_column * largest_row),
        np.eye(len(matrix), dtype=matrix.dtype),
    )
    for _ in range(iterations):
        az = matmul(matrix, inverse)
        inverse = matmul(inverse, 13 * one - matmul(az, 15 * one - matmul(az, 7 * one - az))) / 4
    return inverse


def _scale(query, scale):
    width = query.dtype.type(query.shape[-1])
    return 1 / width ** query.dtype.type(0.5) if scale is None else query.dtype.type(scale)
