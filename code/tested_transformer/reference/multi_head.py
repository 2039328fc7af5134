"""The slow truth of multi-head attention and of its cache."""

from __future__ import annotations

import numpy as np

from .attention import _wide, attention, matmul


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
