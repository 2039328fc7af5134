"""Clustered attention: similar queries share one row of attention weights, that of their mean."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..bounds import AtLeast, NonNegativeInt, PositiveInt
from ..functional.masks import masked_softmax
from ..shapes import checked

__all__ = ["cluster_queries", "clustered_attention", "improved_clustered_attention"]

Clusters = Annotated[Int[Tensor, "B H L"], AtLeast(-1)]
NONE = -1  # the cluster of padding


# --- Finding clusters -----------------------------------------------------------------------------


@checked
def cluster_queries(
    query: Float[Tensor, "B H L d"],
    planes: Float[Tensor, "d b"],
    num_clusters: PositiveInt,
    *,
    num_iterations: NonNegativeInt = 10,
    query_mask: Bool[Tensor, "B L"] | None = None,
) -> Int[Tensor, "B H L"]:
    """K-means on hashes: b bits say on which side of b random planes a query lies.

    The first centroids are the hashes of the first real queries; distances count bits that differ; a
    new centroid has in each bit what most of its members have. Padding, where query_mask is False,
    gets the cluster -1.

    Shapes: query (B, H, L, d), planes (d, b) of standard normal numbers, query_mask (B, L) -> (B, H, L).
    Raises: TypeError or ValueError that name the argument.
    Source: Vyas et al. 2020; idiap/fast-transformers, clustering/hamming, whose order of centroids it has.
    """
    real = torch.ones_like(query[..., 0], dtype=torch.bool)
    real = real if query_mask is None else query_mask[:, None].expand_as(real)
    hashes = torch.where(query.detach() @ planes > 0, 1.0, -1.0)  # B H L b
    first = (~real).long().argsort(dim=-1, stable=True)[..., :num_clusters]
    centroids = hashes.take_along_dim(first[..., None], 2)  # B H C b
    missing = ~real.gather(-1, first)[:, :, None]  # B H 1 C: fewer queries than clusters
    for step in range(num_iterations + 1):
        agreement = (hashes @ centroids.mT).masked_fill(missing, -torch.inf)
        clusters = agreement.argmax(-1).masked_fill(~real, NONE) if query.shape[2] else real.long()
        if step < num_iterations:
            votes = _members(clusters, first.shape[-1], hashes.dtype).mT @ hashes  # B H C b
            centroids = torch.where(votes > 0, 1.0, torch.where(votes < 0, -1.0, centroids))
    return clusters


def _members(clusters: Tensor, num_clusters: int, dtype: torch.dtype) -> Tensor:
    """Row i, column c: 1 if query i is in cluster c, else 0. Shapes: (B, H, L) -> (B, H, L, C)."""
    return (clusters[..., None] == torch.arange(num_clusters, device=clusters.device)).to(dtype)


# --- Attention ------------------------------------------------------------------------------------


@checked
def clustered_attention(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H S d"],
    value: Float[Tensor, "B H S dv"],
    clusters: Clusters,
    *,
    key_mask: Bool[Tensor, "B S"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "B H L dv"]:
    """One softmax per cluster, of the mean of its queries; all of them return the same output.

    Time and memory grow with (number of clusters) x (L + S). A query of cluster -1 returns 0. There is
    no causal form: the mean has queries of different positions, and each would need another mask.

    Shapes: query (B, H, L, d), key (B, H, S, d), value (B, H, S, dv), clusters (B, H, L), key_mask (B, S)
        -> (B, H, L, dv).
    Raises: TypeError or ValueError that name the argument.
    Source: Vyas et al. 2020.
    """
    weights, wide_value = _centroid_weights(query, key, value, clusters, key_mask, scale)
    return _broadcast(weights @ wide_value, clusters).to(query.dtype)


@checked
def improved_clustered_attention(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H S d"],
    value: Float[Tensor, "B H S dv"],
    clusters: Clusters,
    *,
    num_keys: PositiveInt,
    key_mask: Bool[Tensor, "B S"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "B H L dv"]:
    """Clustered attention whose largest weights are computed for each query by itself.

    The num_keys keys of the largest weight in a cluster are its top keys. Each query has a softmax of its
    own over them, times the weight that the centroid gives to them all; for all other keys the
    centroid's weights remain.

    Memory: (number of clusters) x (L + S) + num_keys x d x L numbers.

    Shapes, arguments: those of `clustered_attention`.
    Raises: TypeError or ValueError that name the argument.
    Source: Vyas et al. 2020.
    """
    weights, wide_value = _centroid_weights(query, key, value, clusters, key_mask, scale)
    top_weights, top = weights.topk(min(num_keys, key.shape[2]), -1)  # B H C k
    rest = weights.scatter(-1, top, 0.0) @ wide_value  # B H C dv

    mass = _broadcast(top_weights.sum(-1, keepdim=True), clusters)  # B H L 1
    mine = _broadcast(top, clusters)  # B H L k
    keys, values = (_rows(each, mine) for each in (key.to(weights.dtype), wide_value))  # B H L k d
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.einsum("bhld,bhlkd->bhlk", query.to(weights.dtype) * scale, keys)
    allowed = (
        None if key_mask is None else _rows(_per_head(key_mask, query)[..., None], mine)[..., 0]
    )
    own = mass * masked_softmax(scores, allowed)  # B H L k
    output = torch.einsum("bhlk,bhlkv->bhlv", own, values) + _broadcast(rest, clusters)
    return output.to(query.dtype)


def _centroid_weights(query, key, value, clusters, key_mask, scale) -> tuple[Tensor, Tensor]:
    """The attention weights of each cluster's mean query, (B, H, C, S), and the values in their dtype."""
    wide = torch.promote_types(query.dtype, torch.float32)
    num_clusters = 1 + (int(clusters.max().clamp(min=0)) if clusters.numel() else 0)
    members = _members(clusters, num_clusters, wide)  # B H L C
    centroids = members.mT @ query.to(wide) / members.sum(2).clamp(min=1)[..., None]  # B H C d
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = scale * centroids @ key.to(wide).mT  # B H C S
    allowed = None if key_mask is None else key_mask[:, None, None]
    return masked_softmax(scores, allowed), value.to(wide)


def _broadcast(of_clusters: Tensor, clusters: Tensor) -> Tensor:
    """Row c of (B, H, C, ...) for each query of cluster c; 0 for cluster -1."""
    rows = of_clusters.take_along_dim(clusters.clamp(min=0)[..., None], 2)
    return rows.masked_fill((clusters == NONE)[..., None], 0)


def _per_head(mask: Tensor, query: Tensor) -> Tensor:
    """A mask (B, S) for each head."""
    return mask[:, None].expand(-1, query.shape[1], -1)


def _rows(x: Tensor, ids: Tensor) -> Tensor:
    """For each query the rows of x, (B, H, S, d), that its IDs, (B, H, L, k), name: (B, H, L, k, d)."""
    return x.take_along_dim(ids.flatten(2)[..., None], 2).unflatten(2, ids.shape[2:])
