"""The slow truth of latent attention: every key and value is made of its token's latent, one by one; then plain attention."""

from __future__ import annotations

import numpy as np

from .attention import attention, matmul


def latent_attention(query, rotary_query, latent, rotary_key, up_key, up_value, **options):
    """Each head's keys and values from the latent; a score has a part of its own and a rotary one.

    options: those of `attention`, mask and causal among them.

    Shapes: query (B, H, L, d), rotary_query (B, H, L, r), latent (B, S, c), rotary_key (B, S, r), up_key
    (H, d, c), up_value (H, dv, c) -> (B, H, L, dv). Source: DeepSeek-V2, equations 9 to 19.
    """
    batch, heads, _, width = query.shape
    keys = np.zeros((batch, heads, latent.shape[1], width + rotary_key.shape[-1]), query.dtype)
    values = np.zeros((*keys.shape[:3], up_value.shape[1]), query.dtype)
    for b, h, s in np.ndindex(keys.shape[:3]):
        column = latent[b, s][:, None]
        keys[b, h, s] = [*matmul(up_key[h], column)[:, 0], *rotary_key[b, s]]
        values[b, h, s] = matmul(up_value[h], column)[:, 0]
    return attention(np.concatenate((query, rotary_query), -1), keys, values, **options)
