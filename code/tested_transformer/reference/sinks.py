"""The slow truth of learned attention sinks: one more score in every softmax, whose weight goes nowhere."""

from __future__ import annotations

import numpy as np

from .attention import dot, is_allowed, key_value_index, softmax, weighted_sum


def sink_attention(
    query, key, value, sinks, *, mask=None, bias=None, causal=False, window=None, key_lengths=None,
    alibi_slopes=None, scale=None, return_weights=False,
):  # fmt: skip
    """softmax(sink, scores) without its first number, times the values: query by query.

    Shapes: query (B, H, L, d), key (B, G, S, d), value (B, G, S, dv), sinks (H) -> (B, H, L, dv).
    Source: OpenAI 2025 (gpt-oss, gpt_oss/torch/model.py, sdpa).
    """
    shape = (*query.shape[:-1], key.shape[-2])  # B H L S
    width = query.dtype.type(query.shape[-1])
    scale = 1 / width ** query.dtype.type(0.5) if scale is None else scale
    mask = np.broadcast_to(True if mask is None else mask, shape)
    bias = np.broadcast_to(0.0 if bias is None else bias, shape)
    weights = np.zeros(shape, query.dtype)
    output = np.zeros((*shape[:-1], value.shape[-1]), query.dtype)
    for b, h, i in np.ndindex(shape[:-1]):
        kv = key_value_index((b, h), query, key)
        length = None if key_lengths is None else key_lengths[b]
        scores = np.full(1 + shape[-1], -np.inf, query.dtype)
        scores[0] = sinks[h]  # which nothing hides
        for j in range(shape[-1]):
            rules = {"causal": causal, "window": window, "length": length}
            if mask[b, h, i, j] and is_allowed(i, j, *shape[-2:], **rules):
                score = dot(query[b, h, i], key[kv][j]) * scale + bias[b, h, i, j]
                if alibi_slopes is not None:
                    score -= alibi_slopes[h] * abs(i + shape[-1] - shape[-2] - j)
                scores[1 + j] = score
        weights[b, h, i] = softmax(scores)[1:]
        output[b, h, i] = weighted_sum(weights[b, h, i][None], value[kv])[0]
    return (output, weights) if return_weights else output
