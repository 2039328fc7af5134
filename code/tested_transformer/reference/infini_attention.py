"""The slow truth of Infini-attention: token by token, from keys and values that are all still there."""

from __future__ import annotations

import numpy as np

from .attention import _wide, attention, dot


def infini_attention(
    query, key, value, gate, *, segment_length, delta=False, memory=None, normalizer=None, scale=None
):  # fmt: skip
    """Each segment: attention within it, what the memory returns, then its keys and values written.

    Shapes: query and key (B, H, L, d), value (B, H, L, dv), gate (H) -> (B, H, L, dv), (B, H, d, dv), (B, H, d).
    Source: Munkhdalai et al. 2024, equations 3 to 8.
    """
    query, key, value = _wide(query), _wide(key), _wide(value)
    batch, heads, length, width = query.shape
    output = np.zeros((batch, heads, length, value.shape[-1]), query.dtype)
    memory = np.zeros((batch, heads, width, value.shape[-1])) if memory is None else memory
    normalizer = np.zeros((batch, heads, width)) if normalizer is None else normalizer
    memory, normalizer = memory.astype(query.dtype), normalizer.astype(query.dtype)
    for start in range(0, length, segment_length):
        part = slice(start, min(start + segment_length, length))
        local = attention(
            query[:, :, part], key[:, :, part], value[:, :, part], causal=True, scale=scale
        )
        for b, h in np.ndindex(batch, heads):
            share = 1 / (1 + np.exp(-gate[h]))
            old, total = memory[b, h].copy(), normalizer[b, h].copy()
            for t in range(part.start, part.stop):
                recalled = _recall(query[b, h, t], old, total)
                output[b, h, t] = share * recalled + (1 - share) * local[b, h, t - start]
                new = value[b, h, t]
                new = new - _recall(key[b, h, t], old, total) if delta else new
                memory[b, h] += np.outer(_positive(key[b, h, t]), new)
                normalizer[b, h] += _positive(key[b, h, t])
    return output, memory, normalizer


def _positive(x):
    """ELU + 1, number by number."""
    return np.array([number + 1 if number > 0 else np.exp(number) for number in x], x.dtype)


def _recall(x, memory, normalizer):
    """What the memory returns for one vector; 0 if it is empty."""
    features = _positive(x)
    total = dot(features, normalizer)
    if total == 0:
        return np.zeros(memory.shape[1], memory.dtype)
    return np.array([dot(features, column) / total for column in memory.T], memory.dtype)
