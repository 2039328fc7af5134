"""Larger graphs: what is trained for, the runs that are stored, and what the page says of them."""

import json
from pathlib import Path

import pytest
import torch

from tested_transformer.data.graphs import Graphs, distance_trace
from tested_transformer.experiments.ch22_graphs import (
    FARTHEST,
    SIZES,
    answers,
    conflict_accuracy,
    held_out_graphs,
    make_model,
    model_accuracy,
    network_answers,
    node_logits,
    trace_loss,
    train_model,
    train_network,
)
from tested_transformer.models.transnar import AlgorithmNetwork

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def rows():
    return json.loads((RESULTS / "larger_graphs.json").read_text(encoding="utf-8"))["rows"]


def test_answers_by_hand():
    lengths = torch.full((1, 4, 4), torch.inf)
    lengths[0, 0, 1], lengths[0, 1, 2] = 20.0, 9.0
    graphs = Graphs(lengths, torch.tensor([0]), torch.arange(4)[None])
    assert answers(graphs).tolist() == [[0, 20, FARTHEST, FARTHEST + 1]]


def test_a_network_that_knows_has_no_loss():
    graphs = held_out_graphs(6, 20)
    trace = distance_trace(graphs.lengths, graphs.source, 6)
    reached = trace[:, 1:].isfinite()
    known = torch.stack((200.0 * reached - 100.0, trace[:, 1:].where(reached, 0.0) / 4), -1)
    assert float(trace_loss(known, trace, 4)) < 1e-6
    assert float(trace_loss(known + 1.0, trace, 4)) > 0.9


def test_a_short_training_helps():
    """Who is reached, after a second of training; that everyone is would be right for 84 %."""
    torch.manual_seed(0)
    network, graphs = AlgorithmNetwork(32), held_out_graphs(8, 50)
    train_network(network, 0, 80)
    reached = answers(graphs) <= FARTHEST
    found = network_answers(network, graphs) <= FARTHEST
    assert float(reached.float().mean()) < 0.85
    assert float((found == reached).float().mean()) > 0.93


def test_the_network_stays_as_it_is():
    torch.manual_seed(0)
    network = AlgorithmNetwork(32)
    before = {name: p.clone() for name, p in network.named_parameters()}
    model = make_model(network)
    train_model(model, network, 0, 2, count=4)
    assert all(torch.equal(before[name], p) for name, p in network.named_parameters())
    assert any(float(layer.cross_attention.gate) != 0 for layer in model.layers)


def test_text_and_graph_may_differ():
    """With closed gates the text decides, with the states of any graph."""
    torch.manual_seed(0)
    network = AlgorithmNetwork(32)
    model, graphs = make_model(network), held_out_graphs(6, 5)
    other = Graphs(graphs.lengths.roll(1, 0), graphs.source.roll(1, 0), graphs.names)
    found = node_logits(model, network, graphs, other)
    torch.testing.assert_close(found, node_logits(model, network, other))
    for_text, _ = conflict_accuracy(model, network, 6)
    graphs = held_out_graphs(6)
    other = Graphs(graphs.lengths.roll(1, 0), graphs.source.roll(1, 0), graphs.names)
    expected = node_logits(model, network, other).argmax(-1)
    assert for_text == pytest.approx(float((expected == answers(other)).double().mean()))


def test_without_edges_the_text_no_longer_counts():
    """With closed gates and no edges, the names and the sources decide."""
    torch.manual_seed(0)
    network = AlgorithmNetwork(32)
    model, graphs = make_model(network), held_out_graphs(6, 5)
    other = Graphs(graphs.lengths.flip(1), graphs.source, graphs.names)
    found = node_logits(model, network, graphs, without_edges=True)
    torch.testing.assert_close(found, node_logits(model, network, other, without_edges=True))
    assert not torch.allclose(found, node_logits(model, network, graphs))
    assert 0.0 <= model_accuracy(model, network, 6, without_edges=True) <= 1.0


def test_runs_of_three_seeds_are_stored():
    found = sorted((row["model"], row["seed"]) for row in rows())
    assert found == [(model, seed) for model in ("text", "transnar") for seed in range(3)]
    assert all(list(row["right"]) == [str(n) for n in SIZES] for row in rows())


def test_transnar_has_the_smaller_budget():
    text, transnar = (
        [row for row in rows() if row["model"] == model] for model in ("text", "transnar")
    )
    assert max(r["parameters"] for r in transnar) < min(r["parameters"] for r in text)
    assert max(r["seconds"] for r in transnar) < min(r["seconds"] for r in text)


@pytest.mark.parametrize("size", ["8", "16", "24"])
def test_what_the_page_says_of_the_stored_runs(size):
    """Where the network learned its task, TransNAR is far above the text; in a conflict the states decide."""
    text = [row["right"][size] for row in rows() if row["model"] == "text"]
    for row in rows():
        if row["model"] == "transnar":
            assert max(map(abs, row["gates"])) < 0.15
            assert row["other_text"][size] < 0.3 < 0.45 < row["other_states"][size]
            if row["network"]["8"] > 0.9:
                assert row["other_states"][size] > 0.75
                assert row["right"][size] > max(text) + 0.15


@pytest.mark.parametrize("size", [8, 24])
def test_where_the_answers_are_wrong(size):
    """The run by distances is seed 0 again; of distances from 10 on TransNAR finds almost none."""
    errors = json.loads((RESULTS / "larger_graphs_errors.json").read_text(encoding="utf-8"))
    row = next(row for row in errors["rows"] if row["length"] == size)
    again = next(r for r in rows() if r["model"] == "transnar" and r["seed"] == row["seed"])
    assert row["right"] == again["right"][str(size)]
    shares = torch.tensor(row["share"])
    assert float(shares.sum()) == pytest.approx(1, abs=5e-4)
    for key, total in (("transnar", row["right"]), ("network", again["network"][str(size)])):
        assert float(shares @ torch.tensor(row[key])) == pytest.approx(total, abs=5e-4)
    assert errors["distances"][4:6] == [[10, 12], [13, 23]]
    assert max(row["transnar"][4:6]) < 0.03 < 0.5 < row["network"][4]
    assert row["without_states"] < 0.25
