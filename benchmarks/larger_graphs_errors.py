"""Where the answers of TransNAR and of its graph network are wrong on larger graphs: seed 0 of larger_graphs.py again.

Every row is one number of nodes, 300 graphs. "share", "network" and "transnar" are lists over DISTANCES: the share of
answers whose true distance is in this range, and the shares of these that are right. "right" is that of TransNAR over all
nodes; "without_states": no token reads a node; "sharper": all queries, of self-attention and cross-attention, times 1.5
in the test alone, so the attention weights are closer to one-hot; "sharper_transnar" is the same over DISTANCES. About one
and a half minutes of one processor.

Usage: OMP_NUM_THREADS=1 python benchmarks/larger_graphs_errors.py
"""

import torch
from record import write_rows
from torch import Tensor

from tested_transformer.data.graphs import Graphs, graph_tokens
from tested_transformer.experiments.ch22_graphs import (
    D_STATES,
    NETWORK_STEPS,
    TRANSNAR_STEPS,
    accuracy,
    answers,
    held_out_graphs,
    make_model,
    network_answers,
    node_logits,
    train_model,
    train_network,
)
from tested_transformer.models.transnar import AlgorithmNetwork, TransNar

NAME = "larger_graphs_errors"
SEED, FACTOR = 0, 1.5
DISTANCES = ((0, 0), (1, 3), (4, 6), (7, 9), (10, 12), (13, 23), (24, 24))  # 24 is "not reached"
WHAT = (
    "share of right answers by the true distance, in ranges (0 is the source, 24 is 'not reached'), of a graph network and "
    "of the TransNAR that reads its states, both of seed 0 and trained on graphs of 4 to 8 nodes"
)


def inside(graphs: Graphs) -> list[Tensor]:
    """For each range, whether a node's true distance is in it."""
    true = answers(graphs)
    return [(true >= low) & (true <= high) for low, high in DISTANCES]


def by_distance(found: Tensor, graphs: Graphs) -> list[float | None]:
    """Share of right answers for each range of the true distance; None where there is none."""
    right = (found == answers(graphs)).double()
    return [round(right[k].mean().item(), 4) if k.any() else None for k in inside(graphs)]


def without_states(model: TransNar, network: AlgorithmNetwork, graphs: Graphs) -> Tensor:
    """The answers of TransNAR if no token reads a node."""
    text = graph_tokens(*graphs)
    states = network(graphs.lengths, graphs.source)[0]
    nobody = torch.zeros_like(graphs.names, dtype=torch.bool)
    logits = model(text.tokens, states, graphs.names, real=text.real, real_nodes=nobody)
    return logits[:, -graphs.names.shape[1] :].argmax(-1)


def sharpen(model: TransNar) -> None:
    """Multiply all queries by FACTOR."""
    for layer in model.layers:
        for attention in (layer.attention, layer.cross_attention.attention):
            for parameter in attention.query.parameters():
                parameter.mul_(FACTOR)


def main() -> None:
    """Train both models of one seed and store what they do at 8 and 24 nodes."""
    torch.manual_seed(SEED)
    network = AlgorithmNetwork(D_STATES)
    train_network(network, SEED, NETWORK_STEPS)
    model = make_model(network)
    train_model(model, network, SEED + 100, TRANSNAR_STEPS)
    rows = []
    with torch.no_grad():
        for n in (8, 24):
            graphs = held_out_graphs(n)
            found = node_logits(model, network, graphs).argmax(-1)
            rows.append({
                "length": n, "seed": SEED, "right": round(accuracy(found, graphs), 4),
                "share": [round(k.double().mean().item(), 4) for k in inside(graphs)],
                "network": by_distance(network_answers(network, graphs), graphs),
                "transnar": by_distance(found, graphs),
                "without_states": round(accuracy(without_states(model, network, graphs), graphs), 4),
            })  # fmt: skip
        sharpen(model)
        for row in rows:
            graphs = held_out_graphs(row["length"])
            found = node_logits(model, network, graphs).argmax(-1)
            row["sharper"] = round(accuracy(found, graphs), 4)
            row["sharper_transnar"] = by_distance(found, graphs)
    write_rows(NAME, WHAT, rows, distances=DISTANCES)
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()
