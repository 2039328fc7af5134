"""The slow truth of clustered attention: a mean, a softmax, and a list of top keys for each cluster."""

from __future__ import annotations

import numpy as np

from .attention import dot, masked_softmax, softmax, weighted_sum


def cluster_queries(query, planes, num_clusters, *, num_iterations=10, query_mask=None):
    """K-means on bits: assign to the nearest centroid, take a vote on each bit, and again.

    Shapes: query (B, H, L, d), planes (d, b) -> (B, H, L), -1 for padding. Source: Vyas et al. 2020.
    """
    clusters = np.full(query.shape[:3], -1)
    for b, h in np.ndindex(query.shape[:2]):
        real = [i for i in range(query.shape[2]) if query_mask is None or query_mask[b, i]]
        bits = {i: [dot(query[b, h, i], plane) > 0 for plane in planes.T] for i in real}
        centroids = [bits[i] for i in real[:num_clusters]]
        for step in range(num_iterations + 1):
            for i in real:
                clusters[b, h, i] = _nearest(bits[i], centroids)
            if step < num_iterations:
                members = [
                    [i for i in real if clusters[b, h, i] == c] for c in range(len(centroids))
                ]
                centroids = [
                    [_vote([bits[i][n] for i in own], old) for n, old in enumerate(centroid)]
                    for own, centroid in zip(members, centroids, strict=True)
                ]
    return clusters


def _nearest(bits, centroids):
    """The first centroid with the fewest bits that differ."""
    differ = [sum(a != b for a, b in zip(bits, centroid, strict=True)) for centroid in centroids]
    return differ.index(min(differ))


def _vote(bits, old):
    """What most bits are; with as many for as against, or none, what it was."""
    against = len(bits) - sum(bits)
    return old if sum(bits) == against else sum(bits) > against


def clustered_attention(query, key, value, clusters, *, key_mask=None, scale=None):
    """For each cluster the mean of its queries, which attends for all of them.

    Shapes: query (B, H, L, d), key (B, H, S, d), value (B, H, S, dv), clusters (B, H, L) -> (B, H, L, dv).
    Source: Vyas et al. 2020.
    """
    return improved_clustered_attention(
        query, key, value, clusters, num_keys=0, key_mask=key_mask, scale=scale
    )


def improved_clustered_attention(
    query, key, value, clusters, *, num_keys, key_mask=None, scale=None
):  # fmt: skip
    """The same; among the num_keys keys of the largest weights each query then has weights of its own.

    Shapes: as `clustered_attention`. Source: Vyas et al. 2020.
    """
    scale = (
        1 / query.dtype.type(query.shape[-1]) ** query.dtype.type(0.5) if scale is None else scale
    )
    output = np.zeros((*query.shape[:3], value.shape[-1]), query.dtype)
    for b, h, i in np.ndindex(query.shape[:3]):
        if clusters[b, h, i] == -1:
            continue
        own = [m for m in range(query.shape[2]) if clusters[b, h, m] == clusters[b, h, i]]
        centroid = sum(query[b, h, m] for m in own) / query.dtype.type(len(own))
        allowed = None if key_mask is None else key_mask[b][None]
        scores = np.array([[scale * dot(centroid, k) for k in key[b, h]]], query.dtype)
        weights = masked_softmax(scores, allowed)[0]
        real = [j for j in range(key.shape[2]) if key_mask is None or key_mask[b, j]]
        top = sorted(real, key=lambda j, weights=weights: -weights[j])[:num_keys]
        mass = sum(weights[j] for j in top)
        exact = softmax(
            np.array([scale * dot(query[b, h, i], key[b, h, j]) for j in top], query.dtype)
        )
        for j, weight in zip(top, exact, strict=True):
            weights[j] = mass * weight
        output[b, h, i] = weighted_sum(weights[None], value[b, h])[0]
    return output
