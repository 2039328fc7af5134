"""Clustered attention cluster by cluster, by means of repeated queries, and by weights and index_add."""

import itertools

import torch

from answers import right, wrong
from tested_transformer import attention
from tested_transformer.mixers.clustered import clustered_attention, improved_clustered_attention

right("clustered_attention", "the package's")(clustered_attention)
right("improved_clustered_attention", "the package's")(improved_clustered_attention)


def means(query, clusters):
    """For each query the mean of its cluster."""
    total, count = torch.zeros_like(query), torch.ones_like(query[..., :1])
    for c in range(int(clusters.max()) + 1 if clusters.numel() else 0):
        inside = (clusters == c)[..., None]
        number = inside.sum(2, keepdim=True).clamp(min=1)
        total = torch.where(inside, (query * inside).sum(2, keepdim=True) / number, total)
    return total * count


def padded(key_mask):
    return None if key_mask is None else key_mask[:, None, None]


@right("clustered_attention", "every query replaced by the mean of its cluster")
def by_means(query, key, value, clusters, *, key_mask=None, scale=None):
    output = attention(means(query, clusters), key, value, mask=padded(key_mask), scale=scale)
    return output.masked_fill(clusters[..., None] < 0, 0.0)


@right("clustered_attention", "one cluster after the other")
def by_clusters(query, key, value, clusters, *, key_mask=None, scale=None):
    output = 0 * (query.sum() + key.sum() + value.sum())
    output = output + value.new_zeros(*query.shape[:3], value.shape[-1])
    for b, h in itertools.product(range(query.shape[0]), range(query.shape[1])):
        for c in clusters[b, h].unique().tolist():
            members = (clusters[b, h] == c).nonzero()[:, 0]
            centroid = query[b, h, members].mean(0, keepdim=True)
            mask = None if key_mask is None else key_mask[b : b + 1]
            row = attention(centroid, key[b, h], value[b, h], mask=mask, scale=scale)
            places = (torch.tensor(b), torch.tensor(h), members)
            output = output.index_put(places, row.expand(len(members), -1) * (c >= 0))
    return output


@right("improved_clustered_attention", "the weights of all keys, the top ones replaced")
def by_weights(query, key, value, clusters, *, num_keys, key_mask=None, scale=None):
    mask = padded(key_mask)
    options = {"mask": mask, "scale": scale, "return_weights": True}
    _, weights = attention(means(query, clusters), key, value, **options)  # B H L S
    top = torch.zeros_like(weights, dtype=torch.bool)
    top.scatter_(-1, weights.topk(min(num_keys, key.shape[2]), -1).indices, True)
    allowed = top if mask is None else top & mask
    _, exact = attention(query, key, value, mask=allowed, scale=scale, return_weights=True)
    mass = (weights * top).sum(-1, keepdim=True)
    return (torch.where(top, mass * exact, weights) @ value).masked_fill(
        clusters[..., None] < 0, 0.0
    )


def exponentials(scores):
    """Of the distance to a query's largest score: none overflows."""
    if not scores.shape[-1]:
        return scores.exp()
    return (scores - scores.detach().amax(-1, keepdim=True)).exp()


@right("improved_clustered_attention", "full attention's exponentials, sum by sum")
def by_exponentials(query, key, value, clusters, *, num_keys, key_mask=None, scale=None):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    real = (
        torch.ones_like(key[..., 0])
        if key_mask is None
        else key_mask[:, None] * torch.ones_like(key[..., 0])
    )
    rough = exponentials(means(query, clusters) @ key.mT * scale) * real[:, :, None]
    rough = rough / rough.sum(-1, keepdim=True).clamp(min=1e-30)
    number = min(num_keys, key.shape[2])
    top = (rough >= rough.topk(number, -1).values[..., -1:]).to(query.dtype)
    scores = query @ key.mT * scale
    fine = exponentials(scores.masked_fill(top == 0, -torch.inf)) * real[:, :, None]
    fine = fine / fine.sum(-1, keepdim=True).clamp(min=1e-30)
    weights = rough * (1 - top) + fine * (rough * top).sum(-1, keepdim=True)
    return (weights @ value) * (clusters >= 0)[..., None]


@wrong("clustered_attention", "the centroid is detached")
def detached(query, key, value, clusters, **options):
    return clustered_attention(query.detach(), key, value, clusters, **options)


@wrong("clustered_attention", "full attention")
def full(query, key, value, clusters, *, key_mask=None, scale=None):
    output = attention(query, key, value, mask=padded(key_mask), scale=scale)
    return output.masked_fill(clusters[..., None] < 0, 0.0)


@wrong("improved_clustered_attention", "one key too few at the top")
def one_less(query, key, value, clusters, *, num_keys, **options):
    return improved_clustered_attention(
        query, key, value, clusters, num_keys=max(1, num_keys - 1), **options
    )


@wrong("improved_clustered_attention", "the scale of the centroids alone")
def scale_of_centroids(query, key, value, clusters, *, scale=None, **options):
    return improved_clustered_attention(query, key, value, clusters, **options)
