"""The slow truth of DeepSeek sparse attention: score every key, sort, attend to the first k, query by query."""

from __future__ import annotations

import numpy as np

from .attention import attention, dot, is_allowed
from .positions import apply_rotary


def indexer_scores(query, key, weights):
    """For each query and key: the sum over heads of weight times ReLU(q . k).

    Shapes: (B, I, L, e), (B, S, e), (B, I, L) -> (B, L, S). Source: DeepSeek-V3.2, equation 1.
    """
    scores = np.zeros((query.shape[0], query.shape[2], key.shape[1]), query.dtype)
    for b, t, s in np.ndindex(scores.shape):
        for h in range(query.shape[1]):
            scores[b, t, s] += weights[b, h, t] * max(dot(query[b, h, t], key[b, s]), 0)
    return scores


def select_keys(scores, num_keys, allowed):
    """The num_keys allowed keys of the largest scores of each query, True. Shapes: (B, L, S) twice -> (B, L, S)."""
    selected = np.zeros(scores.shape, bool)
    for b, t in np.ndindex(scores.shape[:2]):
        candidates = [s for s in range(scores.shape[2]) if allowed[b, t, s]]
        candidates.sort(key=lambda s: -scores[b, t, s])
        selected[b, t, candidates[:num_keys]] = True
    return selected


def indexed_attention(
    query, key, value, index_query, index_key, index_weights, *, num_keys, causal=True,
    key_mask=None, mask=None, scale=None, chunk_size=None,
):  # fmt: skip
    """Plain attention under the mask of the selected keys. chunk_size changes nothing.

    Shapes: query (B, H, L, d), key (B, G, S, d), value (B, G, S, dv), index_query (B, I, L, e), index_key
    (B, S, e), index_weights (B, I, L) -> (B, H, L, dv). Source: DeepSeek-V3.2, equations 1 and 2.
    """
    scores = indexer_scores(index_query, index_key, index_weights)
    allowed = np.ones(scores.shape, bool)
    for b, t, s in np.ndindex(scores.shape):
        allowed[b, t, s] = is_allowed(t, s, *scores.shape[1:], causal=causal)
        allowed[b, t, s] &= key_mask is None or key_mask[b, s]
    if mask is not None:
        allowed &= mask
    selected = select_keys(scores, num_keys, allowed)
    return attention(query, key, value, mask=selected[:, None], scale=scale)


def lightning_indexer(query, key, weights, *, num_keys, rotary_dim, base=10000.0, layout="halves"):
    """Rotate the first rotary_dim features by position, score, and select among the past.

    Shapes: (B, I, L, e), (B, L, e), (B, I, L) -> (B, L, L), True = selected. Source: DeepSeek-V3.2, equation 1.
    """
    options = {"base": base, "layout": layout, "rotary_dim": rotary_dim}
    positions = np.arange(key.shape[1])
    query = apply_rotary(query, positions, **options)
    key = apply_rotary(key[:, None], positions, **options)[:, 0]
    scores = indexer_scores(query, key, weights)
    past = np.broadcast_to(np.tri(key.shape[1], dtype=bool), scores.shape)
    return select_keys(scores, num_keys, past)


def indexer_loss(scores, attention_weights, *, mask=None):
    """The mean over queries of KL(p || q): p the heads' weights summed and normalized, q = softmax(scores).

    Both over the keys of the mask; a query without weights does not count.

    Shapes: (B, L, S), (B, H, L, S), (B, L, S) -> (). Source: DeepSeek-V3.2, section 2.1.
    """
    found = []
    for b, t in np.ndindex(scores.shape[:2]):
        keys = range(scores.shape[2])
        if mask is not None:
            keys = [s for s in keys if np.broadcast_to(mask, scores.shape)[b, t, s]]
        sums = np.array([attention_weights[b, :, t, s].sum() for s in keys])
        if sums.sum() == 0:
            continue
        target, own = sums / sums.sum(), scores[b, t, list(keys)]
        log_total = own.max() + np.log(np.exp(own - own.max()).sum())
        terms = [p * (np.log(p) - (x - log_total)) for p, x in zip(target, own, strict=True) if p]
        found.append(sum(terms))
    return np.array(sum(found) / max(len(found), 1), scores.dtype)
