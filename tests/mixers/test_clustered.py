"""Clustered attention: dense limits, the bounds on its error, padding, and the leak that no mask mends."""

import numpy as np
import pytest
import torch

from same_numbers import assert_float32_same, assert_same_numbers
from tested_transformer import attention, reference
from tested_transformer.mixers.clustered import (
    cluster_queries,
    clustered_attention,
    improved_clustered_attention,
)
from tested_transformer.specs.clustered.spec import (
    CLUSTERED_ATTENTION,
    IMPROVED_CLUSTERED_ATTENTION,
)
from tested_transformer.specs.judge import judge

EPS = torch.finfo(torch.float64).eps


def numbers(*shape, seed=1):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


QUERY, KEY, VALUE = numbers(2, 3, 13, 6), numbers(2, 3, 11, 6, seed=2), numbers(2, 3, 11, 5, seed=3)
PLANES = numbers(6, 16, seed=4)
CLUSTERS = cluster_queries(QUERY, PLANES, 4)
NAMES = torch.eye(11, dtype=torch.float64).expand(2, 3, 11, 11)  # each value names its key


@pytest.mark.parametrize("seed", range(1))
def test_the_specs(seed):
    pairs = (
        (CLUSTERED_ATTENTION, clustered_attention),
        (IMPROVED_CLUSTERED_ATTENTION, improved_clustered_attention),
    )
    for spec, function in pairs:
        verdict = judge(spec, function, seed=seed)
        assert verdict.passed, verdict


# --- Clusters -------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_clusters", [1, 3, 13, 20])
@pytest.mark.parametrize("num_iterations", [0, 1, 10])
def test_clusters(num_clusters, num_iterations):
    for mask in (None, torch.rand(2, 13, generator=torch.Generator().manual_seed(5)) < 0.6):
        options = {"num_iterations": num_iterations}
        found = cluster_queries(QUERY, PLANES, num_clusters, query_mask=mask, **options)
        expected = reference.cluster_queries(
            QUERY.numpy(), PLANES.numpy(), num_clusters,
            query_mask=None if mask is None else mask.numpy(), **options,
        )  # fmt: skip
        assert np.array_equal(found.numpy(), expected)
        assert int(found.max()) < num_clusters


def test_clusters_of_a_batch_are_those_of_each_text():
    """Padding is in no cluster, begins none and votes in none: on either side."""
    mask = torch.ones(2, 13, dtype=torch.bool)
    mask[1, :4], mask[1, 11:] = False, False
    for num_clusters in (3, 9):
        batch = cluster_queries(QUERY, PLANES, num_clusters, query_mask=mask)
        assert bool((batch[1][:, ~mask[1]] == -1).all())
        alone = cluster_queries(QUERY[1:, :, mask[1]], PLANES, num_clusters)
        assert torch.equal(alone, batch[1:, :, mask[1]])


def test_groups_far_apart_are_found():
    """Three directions with a little noise: whatever cluster has one of a group has all of it."""
    centers = 10 * torch.eye(6, dtype=torch.float64)[:3]
    group = torch.arange(12) % 3
    query = (centers[group] + 0.1 * numbers(12, 6, seed=6))[None, None]
    clusters = cluster_queries(query, numbers(6, 32, seed=7), 3)[0, 0]
    assert torch.equal(clusters, group)


# --- Dense limits and errors ----------------------------------------------------------------------


def test_as_many_clusters_as_queries_is_full_attention():
    clusters = torch.arange(13).expand(2, 3, 13)
    expected = attention(QUERY, KEY, VALUE)
    torch.testing.assert_close(clustered_attention(QUERY, KEY, VALUE, clusters), expected)
    improved = improved_clustered_attention(QUERY, KEY, VALUE, clusters, num_keys=3)
    torch.testing.assert_close(improved, expected)


@pytest.mark.parametrize("num_keys", [11, 50])
def test_all_keys_at_the_top_is_full_attention(num_keys):
    improved = improved_clustered_attention(QUERY, KEY, VALUE, CLUSTERS, num_keys=num_keys)
    torch.testing.assert_close(improved, attention(QUERY, KEY, VALUE))


@pytest.mark.parametrize("sharpness", [0.1, 1.0, 5.0])
def test_the_error_is_bounded_by_the_distance_of_the_queries(sharpness):
    """A softmax has a Lipschitz constant below 1: |weights - weights'| <= |q - q'| |K| / sqrt(d)."""
    query = sharpness * QUERY
    centroids = torch.zeros_like(query)
    for c in range(4):
        inside = (c == CLUSTERS)[..., None]
        mean = (query * inside).sum(2, keepdim=True) / inside.sum(2, keepdim=True).clamp(min=1)
        centroids = torch.where(inside, mean, centroids)
    error = attention(query, KEY, NAMES) - clustered_attention(query, KEY, NAMES, CLUSTERS)
    norm = torch.linalg.matrix_norm(KEY, 2)[..., None] / 6**0.5  # B H 1
    bound = (query - centroids).norm(dim=-1) * norm  # B H L
    assert bool((error.norm(dim=-1) <= bound * (1 + 1e-9) + 1e-12).all())


@pytest.mark.parametrize("num_keys", range(1, 12))
@pytest.mark.parametrize("sharpness", [0.1, 1.0, 5.0])
def test_improved_is_never_further_from_full_attention(num_keys, sharpness):
    """In the sum of the absolute differences of the weights, query by query."""
    query = sharpness * QUERY
    full = attention(query, KEY, NAMES)
    plain = clustered_attention(query, KEY, NAMES, CLUSTERS)
    improved = improved_clustered_attention(query, KEY, NAMES, CLUSTERS, num_keys=num_keys)
    near, far = ((each - full).abs().sum(-1) for each in (improved, plain))
    assert bool((near <= far + 64 * EPS).all())


def test_weights_sum_to_one():
    for weights in (
        clustered_attention(QUERY, KEY, NAMES, CLUSTERS),
        improved_clustered_attention(QUERY, KEY, NAMES, CLUSTERS, num_keys=4),
    ):
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 13, dtype=torch.float64))


# --- Causality ------------------------------------------------------------------------------------


def test_no_mask_makes_it_causal():
    """A later query moves the centroid, and the first output with it, whatever the keys are."""
    clusters = torch.zeros(1, 1, 4, dtype=torch.long)
    query, key, value = (
        numbers(1, 1, 4, 6),
        numbers(1, 1, 4, 6, seed=2),
        numbers(1, 1, 4, 5, seed=3),
    )
    first_two = torch.tensor([[True, True, False, False]])  # no key after the second is read
    query.requires_grad_()
    output = clustered_attention(query, key, value, clusters, key_mask=first_two)
    leak = torch.autograd.grad(output[:, :, 0].square().sum(), query)[0]
    assert float(leak[:, :, 3].abs().max()) > 1e-3


def test_top_keys_alone_with_a_causal_mask_leak_too():
    """Which keys are at the top is decided by a centroid that has later queries in it."""
    key = torch.eye(3, dtype=torch.float64)[None, None]  # three keys, one direction each
    query = torch.tensor([[3.0, 2.0, 0.0], [2.0, 3.0, 0.0], [0.0, 0.0, 0.0]]).double()[None, None]

    def causal_top(query):  # one top key; each query reads it if it is not later
        top = (query.mean(2) @ key[0, 0].T).argmax(-1)[..., None]  # B H 1
        return (top <= torch.arange(3))[0, 0].tolist()

    other = query.clone()
    other[:, :, 2] = torch.tensor([-2.0, 2.0, 0.0])
    assert causal_top(query) != causal_top(other)


# --- Padding, precision, gradients ----------------------------------------------------------------


def test_batch_is_single():
    key_mask, query_mask = torch.ones(2, 11, dtype=torch.bool), torch.ones(2, 13, dtype=torch.bool)
    key_mask[1, :3], query_mask[1, 9:] = False, False
    clusters = cluster_queries(QUERY, PLANES, 4, query_mask=query_mask)
    own = (QUERY[1:, :, :9], KEY[1:, :, 3:], VALUE[1:, :, 3:], clusters[1:, :, :9])
    for function, options in (
        (clustered_attention, {}),
        (improved_clustered_attention, {"num_keys": 4}),
    ):
        batch = function(QUERY, KEY, VALUE, clusters, key_mask=key_mask, **options)
        torch.testing.assert_close(function(*own, **options), batch[1:, :, :9])
        assert bool((batch[1, :, 9:] == 0).all())


def test_no_query_and_no_key():
    none = torch.zeros(2, 3, 0, dtype=torch.long)
    assert clustered_attention(QUERY[:, :, :0], KEY, VALUE, none).shape == (2, 3, 0, 5)
    empty = clustered_attention(QUERY, KEY[:, :, :0], VALUE[:, :, :0], CLUSTERS)
    assert bool((empty == 0).all())
    assert cluster_queries(QUERY[:, :, :0], PLANES, 4).shape == (2, 3, 0)
    assert bool(
        (cluster_queries(QUERY, PLANES, 4, query_mask=torch.zeros(2, 13).bool()) == -1).all()
    )


def by_weights(query, key, value, num_keys):
    """Over all keys: the centroids' weights by einsum, the top ones replaced by a mask."""
    members = torch.nn.functional.one_hot(CLUSTERS).to(query.dtype)
    centroids = (
        torch.einsum("bhlc,bhld->bhcd", members, query) / members.sum(2).clamp(min=1)[..., None]
    )
    means = torch.einsum("bhlc,bhcd->bhld", members, centroids)
    weights = (means @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
    if num_keys:
        top = weights >= weights.topk(num_keys, -1).values[..., -1:]
        exact = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(~top, -torch.inf).softmax(-1)
        weights = torch.where(top, (weights * top).sum(-1, keepdim=True) * exact, weights)
    return weights @ value


@pytest.mark.parametrize("num_keys", [0, 3])
def test_float32_and_gradients(num_keys):
    def ours(query, key, value):
        options = {"num_keys": num_keys} if num_keys else {}
        function = improved_clustered_attention if num_keys else clustered_attention
        return function(query, key, value, CLUSTERS, **options)

    def runs(function):
        def run(dtype):
            given = [x.clone().to(dtype).detach().requires_grad_() for x in (QUERY, KEY, VALUE)]
            output = function(*given)
            (output * numbers(*output.shape, seed=9).to(dtype)).sum().backward()
            return {"output": [output], "gradients": [x.grad for x in given]}

        return run

    plain = runs(lambda *given: by_weights(*given, num_keys))
    assert_same_numbers(runs(ours), plain)
    assert_float32_same(runs(ours), plain)


def test_a_cluster_has_one_output():
    output = clustered_attention(QUERY, KEY, VALUE, CLUSTERS)
    for b, h, c in np.ndindex(2, 3, 4):
        rows = output[b, h, CLUSTERS[b, h] == c]
        assert bool((rows == rows[:1]).all())


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="clusters: expected"):
        clustered_attention(QUERY, KEY, VALUE, CLUSTERS[..., :5])
    with pytest.raises(ValueError, match="clusters: expected"):
        clustered_attention(QUERY, KEY, VALUE, CLUSTERS - 4)
    with pytest.raises(ValueError, match="num_keys: expected at least 1"):
        improved_clustered_attention(QUERY, KEY, VALUE, CLUSTERS, num_keys=0)
    with pytest.raises(ValueError, match="key_mask: expected"):
        clustered_attention(QUERY, KEY, VALUE, CLUSTERS, key_mask=torch.ones(2, 13).bool())
    with pytest.raises(ValueError, match="planes: expected"):
        cluster_queries(QUERY, PLANES[:3], 4)
    with pytest.raises(ValueError, match="num_clusters: expected at least 1"):
        cluster_queries(QUERY, PLANES, 0)
