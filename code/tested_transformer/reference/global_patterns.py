"""The slow truth of attention with tokens that everybody reads: Longformer and BigBird, query by query."""

from __future__ import annotations

import numpy as np

from .attention import dot, softmax


def longformer_attention(
    query, key, value, global_query, global_key, global_value, is_global, *, window,
    key_mask=None, scale=None,
):  # fmt: skip
    """A global query reads all keys by the global projections; a local one its window and the global tokens.

    Shapes: queries and keys (B, H, L, d), values (B, H, L, dv), is_global and key_mask (B, L) -> (B, H, L, dv).
    Source: Beltagy et al. 2020 (Longformer).
    """
    real = np.ones_like(is_global) if key_mask is None else key_mask
    chosen = is_global & real
    output = np.zeros((*query.shape[:-1], value.shape[-1]), query.dtype)
    for b, h, i in np.ndindex(query.shape[:-1]):
        if chosen[b, i]:
            allowed = [j for j in range(query.shape[2]) if real[b, j]]
            q, k, v = global_query[b, h, i], global_key[b, h], global_value[b, h]
        else:
            near = [j for j in range(query.shape[2]) if abs(i - j) < window or chosen[b, j]]
            allowed = [j for j in near if real[b, j]]
            q, k, v = query[b, h, i], key[b, h], value[b, h]
        output[b, h, i] = _attended(q, k, v, allowed, scale)
    return output


def big_bird_attention(
    query, key, value, random_blocks, *, block_size, key_mask=None, scale=None
):  # fmt: skip
    """The first and the last block read all; another one reads them, its neighbors and its random blocks.

    Shapes: query and key (B, H, L, d), value (B, H, L, dv), random_blocks (H, ceil(L / block_size) - 2, r),
        key_mask (B, L) -> (B, H, L, dv).
    Source: Zaheer et al. 2020 (Big Bird); its blocked form as in transformers, models/big_bird.
    """
    last = (query.shape[2] - 1) // block_size
    output = np.zeros((*query.shape[:-1], value.shape[-1]), query.dtype)
    for b, h, i in np.ndindex(query.shape[:-1]):
        own = i // block_size
        blocks = set(range(last + 1))
        if 0 < own < last:
            blocks = {0, own - 1, own, own + 1, last, *random_blocks[h, own - 1].tolist()}
        allowed = [
            j for j in range(query.shape[2])
            if j // block_size in blocks and (key_mask is None or key_mask[b, j])
        ]  # fmt: skip
        output[b, h, i] = _attended(query[b, h, i], key[b, h], value[b, h], allowed, scale)
    return output


def dynamic_convolution(x, logits, *, causal=False, key_mask=None):
    """Each channel of each token: the sum over its neighbors, weighted by a softmax of its head's logits.

    Shapes: x (B, L, D), logits (B, L, H, K), broadcast over B and L, key_mask (B, L) -> (B, L, D).
    Source: Wu et al. 2019 (Pay Less Attention); mit-han-lab/lite-transformer,
        fairseq/modules/lightweight_convolution.py.
    """
    heads, width = logits.shape[-2:]
    logits = np.broadcast_to(logits, (*x.shape[:2], heads, width))
    output = np.zeros_like(x)
    for b, i, channel in np.ndindex(x.shape):
        weights = softmax(logits[b, i, channel * heads // x.shape[-1]])
        for tap in range(width):
            j = i + tap - (width - 1 if causal else (width - 1) // 2)
            if 0 <= j < x.shape[1] and (key_mask is None or key_mask[b, j]):
                output[b, i, channel] += weights[tap] * x[b, j, channel]
    return output


def _attended(query, key, value, allowed, scale):
    """One query's output; zeros where it has no key."""
    if not allowed:
        return np.zeros(value.shape[-1], value.dtype)
    scale = 1 / np.sqrt(query.dtype.type(len(query))) if scale is None else scale
    weights = softmax(np.array([dot(query, key[j]) * scale for j in allowed]))
    return sum(weight * value[j] for weight, j in zip(weights, allowed, strict=True))
