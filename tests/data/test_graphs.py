"""Random graphs, their shortest distances against SciPy, their text."""

import numpy as np
import pytest
import torch
from scipy.sparse import csgraph

from tested_transformer.data.graphs import distance_trace, graph_text, graph_tokens, sample_graphs

INF = torch.inf


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_what_is_sampled():
    graphs = sample_graphs(200, 6, generator(), num_names=9, mean_degree=2.5, max_length=4)
    edges = graphs.lengths.isfinite()
    assert not bool(edges.diagonal(dim1=1, dim2=2).any())
    assert set(graphs.lengths[edges].tolist()) == {1.0, 2.0, 3.0, 4.0}
    assert all(len(set(names)) == 6 for names in graphs.names.tolist())
    assert set(graphs.names.flatten().tolist()) == set(range(9))
    assert set(graphs.source.tolist()) == set(range(6))
    mean = edges.float().sum() / (200 * 6)  # 6,000 edges possible, each with a probability of 1/2
    assert abs(mean - 2.5) < 5 * (0.25 * 6000) ** 0.5 / 1200


@pytest.mark.parametrize("num_nodes", [1, 2, 5, 9])
def test_distances_are_those_of_scipy(num_nodes):
    graphs = sample_graphs(20, num_nodes, generator(num_nodes))
    found = distance_trace(graphs.lengths, graphs.source, num_nodes)[:, -1]
    for lengths, source, distance in zip(*graphs[:2], found, strict=True):
        graph = csgraph.csgraph_from_dense(lengths.double().numpy(), null_value=np.inf)
        for method in (csgraph.bellman_ford, csgraph.dijkstra):
            np.testing.assert_array_equal(method(graph, indices=int(source)), distance.numpy())


def test_with_lengths_of_1_it_is_breadth_first_search():
    graphs = sample_graphs(20, 8, generator(3), max_length=1)
    trace = distance_trace(graphs.lengths, graphs.source, 8)
    for lengths, source, steps in zip(*graphs[:2], trace, strict=True):
        edges = lengths.isfinite()
        depth, frontier = {int(source): 0}, [int(source)]
        while frontier:
            frontier = sorted(
                {v for u in frontier for v in edges[u].nonzero().flatten().tolist()} - depth.keys()
            )
            depth |= {v: max(depth.values()) + 1 for v in frontier}
        for t, row in enumerate(steps.tolist()):
            assert row == [depth[v] if depth.get(v, INF) <= t else INF for v in range(8)]


def test_tokens_by_hand():
    lengths = torch.full((2, 3, 3), INF)
    lengths[0, 0, 2], lengths[0, 2, 1], lengths[1, 1, 0] = 2.0, 1.0, 3.0
    names = torch.tensor([[7, 4, 5], [1, 2, 3]])
    tokens, real = graph_tokens(lengths, torch.tensor([0, 1]), names)
    assert tokens.shape == (2, 6, 4)
    assert graph_text(tokens[0], real[0]) == "from7 7>5:2 5>4:1 ?7 ?4 ?5"
    assert graph_text(tokens[1], real[1]) == "from2 2>1:3 ?1 ?2 ?3"
    assert real[1].tolist() == [True, True, False, True, True, True]
    assert not bool(tokens[1, 2].any())


def test_graphs_without_edges():
    graphs = sample_graphs(2, 3, generator(), mean_degree=0.0)
    assert graph_tokens(*graphs).tokens.shape == (2, 4, 4)
    trace = distance_trace(graphs.lengths, graphs.source, 2)
    assert int(trace.isfinite().sum()) == 2 * 3
    none = sample_graphs(0, 3, generator())
    assert graph_tokens(*none).tokens.shape == (0, 4, 4)


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="num_nodes: expected at most num_names = 4, got 5"):
        sample_graphs(1, 5, generator(), num_names=4)
    with pytest.raises(ValueError, match="source: expected"):
        distance_trace(torch.zeros(1, 3, 3), torch.tensor([3]), 1)
    with pytest.raises(ValueError, match="num_steps: expected at least 0"):
        distance_trace(torch.zeros(1, 3, 3), torch.tensor([0]), -1)
    with pytest.raises(ValueError, match="names: expected"):
        graph_tokens(torch.zeros(1, 3, 3), torch.tensor([0]), torch.zeros(1, 2).long())
    with pytest.raises(ValueError, match="real: expected"):
        graph_text(torch.zeros(3, 4).long(), torch.ones(2, dtype=torch.bool))
