"""The slow truth of LSH attention: lists of keys, chunk by chunk, and one softmax over each list."""

from __future__ import annotations

import numpy as np

from .attention import dot, softmax


def lsh_buckets(vectors, rotations, *, key_mask=None):
    """For each token the largest of r products and their negatives: its number is the bucket.

    Shapes: vectors (B, H, L, d), rotations (H, d, R, r) -> (B, H, R, L). Source: Reformer.
    """
    (batch, heads, length, _), (rounds, width) = vectors.shape, rotations.shape[2:]
    buckets = np.zeros((batch, heads, rounds, length), np.int64)
    for b, h, r, i in np.ndindex(buckets.shape):
        products = [dot(vectors[b, h, i], rotations[h, :, r, k]) for k in range(width)]
        both = products + [-p for p in products]
        buckets[b, h, r, i] = max(range(2 * width), key=lambda k, both=both: both[k])
        if key_mask is not None and not key_mask[b, i]:
            buckets[b, h, r, i] = 2 * width
    return buckets


def lsh_attention(
    query, value, buckets, *, chunk_size, chunks_before=1, chunks_after=0, causal=False, key_mask=None,
    form="paper",
):  # fmt: skip
    """One softmax per query over the keys that it finds, each as often as it counts.

    Shapes: query (B, H, L, d), value (B, H, L, dv), buckets (B, H, R, L) -> (B, H, L, dv).
    Source: Reformer; transformers, LSHSelfAttention.
    """
    output = np.zeros((*query.shape[:3], value.shape[-1]), query.dtype)
    keys = np.zeros_like(query)
    for place in np.ndindex(query.shape[:3]):
        mean_square = dot(query[place], query[place]) / query.shape[-1]
        keys[place] = query[place] / (mean_square + query.dtype.type(1e-6)) ** query.dtype.type(0.5)
    root = query.dtype.type(query.shape[-1]) ** query.dtype.type(0.5)
    for b, h, i in np.ndindex(query.shape[:3]):
        lists = _chunks(buckets[b, h], chunk_size)
        found = _found(i, lists, buckets[b, h], chunks_before, chunks_after, form)
        found = [
            j for j in found if (key_mask is None or key_mask[b, j]) and not (causal and j > i)
        ]
        scores = [dot(query[b, h, i], keys[b, h, j]) / root if j != i else -1e5 for j in found]
        weights = softmax(np.array(scores, query.dtype))
        for j, weight in zip(found, weights, strict=True):
            output[b, h, i] += weight * value[b, h, j]
    return output


def _chunks(buckets, chunk_size):
    """For each round the list of its chunks, and each chunk a list of tokens."""
    lists = []
    for of_round in buckets:
        order = sorted(range(len(of_round)), key=lambda i, own=of_round: (own[i], i))
        lists.append([order[s : s + chunk_size] for s in range(0, len(order), chunk_size)])
    return lists


def _found(i, lists, buckets, before, after, form):
    """The keys that token i reads, in the paper's form once, in the other one as often as it finds them."""
    line = [(r, chunk) for r, chunks in enumerate(lists) for chunk in chunks]
    found = []
    for place, (r, chunk) in enumerate(line):
        for step in range(-before, after + 1) if i in chunk else ():
            if form == "trax":
                found += line[(place + step) % len(line)][1]
            elif 0 <= place + step < len(line) and line[place + step][0] == r:
                near = line[place + step][1]
                found += [j for j in near if buckets[r][j] == buckets[r][i] and j not in found]
    return found
