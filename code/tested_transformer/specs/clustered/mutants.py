"""The famous mistakes with clustered attention: padding in a cluster, weights that sum to more than 1."""

from __future__ import annotations

import torch

from ..mistakes import Formula, mistake


class ClusteredFormula(Formula):
    """The right formula of the improved form, query by query in matrices, cut into steps.

    Without num_keys it is the plain form.
    """

    def __call__(self, query, key, value, clusters, *, num_keys=None, key_mask=None, scale=None):
        """The centroids' weights, those of the top keys computed again, times the values."""
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        clusters = self.clusters(clusters)
        share = self.share(clusters, query.dtype)  # B H L L: of each query in each query's centroid
        allowed = torch.ones_like(key[..., 0], dtype=torch.bool)[:, :, None]  # B H 1 S
        allowed = allowed if key_mask is None else allowed & self.real(key_mask)
        weights = softmax(scale * (share @ query) @ key.mT, allowed)  # B H L S
        if num_keys is not None:
            weights = self.improved(query, key, weights, scale, num_keys, allowed)
        return weights.masked_fill((clusters < 0)[..., None], 0.0) @ value

    def clusters(self, clusters):
        """Which cluster each query of each head is in."""
        return clusters

    def share(self, clusters, dtype):
        """The mean over the members of a cluster, for each of them."""
        together = self.together(clusters).to(dtype)
        return together / together.sum(-1, keepdim=True).clamp(min=1)

    def together(self, clusters):
        """Which queries are in one cluster."""
        return clusters[..., None] == clusters[..., None, :]

    def real(self, key_mask):
        """No padding."""
        return key_mask[:, None, None]

    def improved(self, query, key, weights, scale, num_keys, allowed):
        """The weights outside the top keys, and exact ones among them."""
        top = torch.zeros_like(weights, dtype=torch.bool)
        top = top.scatter(-1, weights.topk(min(num_keys, key.shape[2]), -1).indices, True)
        exact = softmax(self.scores(query, key, scale), top & self.of_top(allowed))
        return self.rest(weights, top) + self.mass(weights * top) * exact

    def scores(self, query, key, scale):
        """Each query's own."""
        return scale * query @ key.mT

    def of_top(self, allowed):
        """Padding that is among the top keys, where there are too few others."""
        return allowed

    def rest(self, weights, top):
        """What the centroid gives to all other keys."""
        return weights.masked_fill(top, 0.0)

    def mass(self, weights):
        """What the centroid gives to the top keys together."""
        return weights.sum(-1, keepdim=True)


def softmax(scores, allowed):
    """Over the keys that are allowed; zeros where none is."""
    allowed = allowed.expand_as(scores)
    empty = ~allowed.any(-1, keepdim=True)
    scores = scores.masked_fill(~allowed, -torch.inf).masked_fill(empty, 0.0)
    return scores.softmax(-1).masked_fill(empty, 0.0)


# --- The plain form -------------------------------------------------------------------------------


@mistake(
    "the centroid is a sum",
    rejected_by="equal queries attend as one of them",
    symptom="The larger a cluster, the sharper its attention: it picks a single key.",
    cause="The queries of a cluster are added up and not divided by their number.",
    of="clustered_attention",
)
class CentroidIsSum(ClusteredFormula):
    def share(self, clusters, dtype):
        return self.together(clusters).to(dtype)


@mistake(
    "padding is in the last cluster",
    rejected_by="a query without a cluster changes nothing",
    symptom="A text gets other outputs in a padded batch than alone.",
    cause="Padding has the cluster -1, which as an index names the last one.",
    of="clustered_attention",
)
class PaddingInLastCluster(ClusteredFormula):
    def together(self, clusters):
        last = clusters.amax(-1, keepdim=True)
        clusters = torch.where(clusters < 0, last, clusters)
        return super().together(clusters)


@mistake(
    "clustered attention reads padding",
    rejected_by="padding is not read",
    symptom="A text gets other outputs in a padded batch than alone.",
    cause="The key mask is used to find the clusters, and not in the softmax of the centroids.",
    of="clustered_attention",
)
class CentroidsReadPadding(ClusteredFormula):
    def real(self, key_mask):
        return torch.ones_like(key_mask)[:, None, None]


@mistake(
    "the clusters of the first head for all",
    rejected_by="a head has clusters of its own",
    symptom="Right for one head. In the others queries are averaged that have nothing in common.",
    cause="Clusters are found once per text. Each head has queries of its own, and so clusters of its own.",
    of="clustered_attention",
)
class FirstHeadsClusters(ClusteredFormula):
    def clusters(self, clusters):
        return clusters[:, :1].expand_as(clusters)


# --- The improved form ----------------------------------------------------------------------------


@mistake(
    "exact weights on top of the others",
    rejected_by="the weights of a query sum to 1",
    symptom="Weights sum to nearly 2, and outputs are too large.",
    cause="The exact softmax over the top keys sums to 1. It must be multiplied by what the centroid gave them.",
    of="improved_clustered_attention",
)
class MassIsOne(ClusteredFormula):
    def mass(self, weights):
        return torch.ones_like(weights[..., :1])


@mistake(
    "top keys count twice",
    rejected_by="the weights of a query sum to 1",
    symptom="The keys that matter most count twice, by the centroid and by the query.",
    cause="The centroid's weights of the top keys are not removed before the exact ones are added.",
    of="improved_clustered_attention",
)
class TopCountsTwice(ClusteredFormula):
    def rest(self, weights, top):
        return weights


@mistake(
    "the other keys are dropped",
    rejected_by="other keys keep the weights of the centroid",
    symptom="Sharp heads are right; heads that average over many keys are not.",
    cause="Attention to the top keys alone. That is another mechanism, with errors that are not bounded by the "
    "plain form's.",
    seen="idiap/fast-transformers, improved_clustered_causal_attention.py, which does so on purpose",
    of="improved_clustered_attention",
)
class OthersDropped(ClusteredFormula):
    def rest(self, weights, top):
        return torch.zeros_like(weights)

    def mass(self, weights):
        return torch.ones_like(weights[..., :1])


@mistake(
    "exact scores of the centroid",
    rejected_by="with all keys at the top it is full attention",
    symptom="Slower than the plain form, and exactly as wrong.",
    cause="The scores of the top keys are computed again with the centroid. They need each query's own vector.",
    of="improved_clustered_attention",
)
class ScoresOfCentroid(ClusteredFormula):
    def improved(self, query, key, weights, scale, num_keys, allowed):
        return weights


@mistake(
    "padding among the top keys",
    rejected_by="padding is not read",
    symptom="Short texts of a batch read padding as soon as they have fewer keys than num_keys.",
    cause="topk always returns num_keys keys. Those of weight 0 are padding, and must be masked once more.",
    of="improved_clustered_attention",
)
class PaddingAtTop(ClusteredFormula):
    def of_top(self, allowed):
        return torch.ones_like(allowed)
