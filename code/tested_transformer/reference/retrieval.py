"""The slow truth of retrieval: which chunk a position reads, its neighbors, and attention to them, token by token."""

from __future__ import annotations

import numpy as np

from .attention import attention


def chunk_read_by(position_ids, chunk_size):
    """Count the chunks that are complete when a position has been read; the last of them.

    Shapes: any. Source: Borgeaud et al. 2022 (RETRO).
    """
    chunks = np.empty_like(position_ids)
    for place in np.ndindex(position_ids.shape):
        chunk = -1
        while (chunk + 2) * chunk_size - 1 <= position_ids[
            place
        ]:  # the last token of the next chunk
            chunk += 1
        chunks[place] = chunk
    return chunks


def chunked_cross_attention(query, key, value, *, chunk_size, mask=None):
    """One token after the other: attention of one query to the neighbors of one chunk, or zeros.

    Shapes: query (B, H, L, d), key (B, H, N, R, d), value (B, H, N, R, dv), mask (B, N, R) ->
    (B, H, L, dv). Source: Borgeaud et al. 2022 (RETRO).
    """
    output = np.zeros((*query.shape[:3], value.shape[-1]), query.dtype)
    for b, h, t in np.ndindex(query.shape[:3]):
        chunk = int(chunk_read_by(np.array(t), chunk_size))
        if chunk >= 0:
            seen = None if mask is None else mask[b, chunk][None]
            one = query[b, h, t][None]
            output[b, h, t] = attention(one, key[b, h, chunk], value[b, h, chunk], mask=seen)[0]
    return output


def nearest_neighbors(queries, keys, num_neighbors, *, allowed=None):
    """Take the nearest allowed key that is left, as often as neighbors are wanted; -1 for none.

    Shapes: queries (Q, d), keys (S, d), allowed (Q, S) -> (Q, num_neighbors).
    """
    found = np.full((len(queries), num_neighbors), -1)
    for q, query in enumerate(queries):
        left = [s for s in range(len(keys)) if allowed is None or allowed[q, s]]
        for place in range(min(num_neighbors, len(left))):
            found[q, place] = min(left, key=lambda s: (((query - keys[s]) ** 2).sum(), s))
            left.remove(found[q, place])
    return found
