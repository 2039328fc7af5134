"""The slow truth of latent attention: every key and value is made of its token's latent, one by one."""

from __future__ import annotations

import numpy as np

from .attention import dot, masked_softmax, matmul, weighted_sum


def latent_attention(query, rotary_query, latent, rotary_key, up_key, up_value, mask=None):
    """Each head's keys and values from the latent; a score has a part of its own and a rotary one.

    Shapes: query (B, H, L, d), rotary_query (B, H, L, r), latent (B, S, c), rotary_key (B, S, r), up_key
    (H, d, c), up_value (H, dv, c) -> (B, H, L, dv). Source: DeepSeek-V2, equations 9 to 19.
    """
    batch, heads, length, width = query.shape
    output = np.zeros((batch, heads, length, up_value.shape[1]), query.dtype)
    root = np.sqrt(query.dtype.type(width + rotary_query.shape[-1]))
    for b, h in np.ndindex(batch, heads):
        keys = [matmul(up_key[h], c[:, None])[:, 0] for c in latent[b]]  # S d
        values = np.array([matmul(up_value[h], c[:, None])[:, 0] for c in latent[b]])  # S dv
        for i in range(length):
            row = [
                (dot(query[b, h, i], key) + dot(rotary_query[b, h, i], rotary)) / root
                for key, rotary in zip(keys, rotary_key[b], strict=True)
            ]
            allowed = None if mask is None else mask[i]
            output[b, h, i] = weighted_sum(masked_softmax(np.array(row), allowed), values)
    return output
