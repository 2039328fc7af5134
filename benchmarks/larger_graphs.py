"""Shortest paths in graphs larger than any in training: a Transformer of text against TransNAR.

Every row is one training run. "text" is a Transformer of 5 layers on the words of a graph; "transnar" has 3 layers that
read the states of a graph network, which was trained on traces of Bellman-Ford before and stays as it is. All train on
graphs of 4 to 8 nodes. "right" is the share of nodes with the right distance by the number of nodes, on 300 graphs each;
"network" is that of the graph network alone. Where TransNAR is given the text of one graph and the states of another,
"other_text" is the share of answers right for the text, and "other_states" for the states; "without_edges" is the share
of right answers where the tokens of the edges are masked. Seconds are those of one processor, the network's training included. About ten minutes.

Usage: OMP_NUM_THREADS=1 python benchmarks/larger_graphs.py
"""

import time

import torch
from record import measure_missing

from tested_transformer.experiments.ch22_graphs import (
    D_STATES,
    LARGEST,
    NETWORK_STEPS,
    SIZES,
    SMALLEST,
    TEXT_STEPS,
    TRANSNAR_STEPS,
    accuracy,
    conflict_accuracy,
    held_out_graphs,
    make_model,
    model_accuracy,
    network_answers,
    train_model,
    train_network,
)
from tested_transformer.models.transnar import AlgorithmNetwork

NAME = "larger_graphs"
WHAT = (
    f"share of nodes with the right shortest distance, by the number of nodes, after training on graphs of {SMALLEST} to "
    f"{LARGEST} nodes: {TEXT_STEPS} steps of 64 graphs for the Transformer alone, {NETWORK_STEPS} steps of 32 graphs for "
    f"the network and {TRANSNAR_STEPS} of 64 for TransNAR; seconds are those of one processor, beside other work"
)


def measure(model: str, seed: int) -> dict:
    """One training run, from a seed that sets the weights and the graphs."""
    torch.manual_seed(seed)
    network, more, begin = None, {}, time.process_time()
    if model == "transnar":
        network = AlgorithmNetwork(D_STATES)
        train_network(network, seed, NETWORK_STEPS)
    trained = make_model(network)
    train_model(trained, network, seed + 100, TEXT_STEPS if network is None else TRANSNAR_STEPS)
    seconds = time.process_time() - begin
    right = {str(n): round(model_accuracy(trained, network, n), 4) for n in SIZES}
    if network is not None:
        alone = {
            str(n): accuracy(network_answers(network, held_out_graphs(n)), held_out_graphs(n))
            for n in SIZES
        }
        other = {str(n): conflict_accuracy(trained, network, n) for n in SIZES}
        without = {str(n): model_accuracy(trained, network, n, without_edges=True) for n in SIZES}
        gates = [layer.cross_attention.gate.tanh().item() for layer in trained.layers]
        more = {
            "network": {n: round(value, 4) for n, value in alone.items()},
            "other_text": {n: round(text, 4) for n, (text, _) in other.items()},
            "other_states": {n: round(states, 4) for n, (_, states) in other.items()},
            "without_edges": {n: round(value, 4) for n, value in without.items()},
            "gates": [round(gate, 3) for gate in gates],
        }
    parameters = sum(p.numel() for m in (trained, network) if m is not None for p in m.parameters())
    return {
        "model": model, "seed": seed, "seconds": round(seconds, 1), "parameters": parameters,
        "right": right, **more,
    }  # fmt: skip


def main() -> None:
    """Measure the runs that are missing."""
    wanted = ({"model": model, "seed": seed} for seed in range(3) for model in ("text", "transnar"))
    measure_missing(NAME, WHAT, wanted, measure, ["model", "seed", "seconds", "right"])


if __name__ == "__main__":
    main()
