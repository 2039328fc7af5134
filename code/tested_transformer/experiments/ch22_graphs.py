"""Shortest paths in graphs larger than any in training: a Transformer of text, with and without TransNAR (chapter 22)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ..data.graphs import Graphs, distance_trace, graph_tokens, sample_graphs
from ..models.transnar import AlgorithmNetwork, TransNar, TransNarConfig

SMALLEST, LARGEST = 4, 8  # nodes of a graph in training
SIZES = (6, 8, 10, 12, 16, 24)  # nodes of the graphs in tests
D_STATES = 32
EDGE = 1  # the kind of token that is an edge
FARTHEST = (
    23  # the largest distance that has an answer of its own; the answer after it is "not reached"
)
NETWORK_STEPS, TEXT_STEPS, TRANSNAR_STEPS = 1200, 1500, 1000
TEXT_LAYERS, TRANSNAR_LAYERS = 5, 3  # so that the Transformer alone has more parameters


def answers(graphs: Graphs) -> Int[Tensor, "B n"]:
    """What the questions ask for: the distance of each node as a class, FARTHEST at most."""
    distance = distance_trace(graphs.lengths, graphs.source, graphs.lengths.shape[-1])[:, -1]
    return distance.clamp(max=FARTHEST).where(distance.isfinite(), FARTHEST + 1.0).long()


def training_graphs(count: int, rng: torch.Generator) -> Graphs:
    """Graphs of one size, sampled from those of training."""
    return sample_graphs(count, int(torch.randint(SMALLEST, LARGEST + 1, (), generator=rng)), rng)


# --- The network that runs the algorithm ----------------------------------------------------------


def trace_loss(
    predictions: Float[Tensor, "B T n 2"], trace: Float[Tensor, "B T+1 n"], unit: int
) -> Float[Tensor, ""]:
    """Every step: is a node reached, and where it is, how far is it in units?"""
    reached = trace[:, 1:].isfinite()
    logits, distance = predictions.unbind(-1)
    wrong = functional.binary_cross_entropy_with_logits(logits, reached.to(logits))
    off = (distance - trace[:, 1:] / unit)[reached].square().mean()
    return wrong + off


def train_network(network: AlgorithmNetwork, seed: int, steps: int, *, count: int = 32) -> None:
    """Train on traces of Bellman-Ford, all steps of it."""
    rng = torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        graphs = training_graphs(count, rng)
        _, predictions = network(graphs.lengths, graphs.source)
        trace = distance_trace(graphs.lengths, graphs.source, predictions.shape[1])
        return trace_loss(predictions, trace, network.unit)

    _train(network, loss, steps, 5e-3)


@torch.no_grad()
def network_answers(network: AlgorithmNetwork, graphs: Graphs) -> Int[Tensor, "B n"]:
    """What the network alone predicts after its last step, rounded to whole numbers."""
    _, predictions = network(graphs.lengths, graphs.source)
    logits, distance = predictions[:, -1].unbind(-1)  # B n
    rounded = (distance * network.unit).round().clamp(0, FARTHEST)
    return rounded.where(logits > 0, FARTHEST + 1.0).long()


# --- The Transformer, alone or with the network ---------------------------------------------------


def make_model(network: AlgorithmNetwork | None) -> TransNar:
    """The Transformer alone, or a smaller one that reads the states of the network."""
    if network is None:
        return TransNar(TransNarConfig(num_layers=TEXT_LAYERS))
    return TransNar(TransNarConfig(num_layers=TRANSNAR_LAYERS, d_states=D_STATES))


def node_logits(
    model: TransNar,
    network: AlgorithmNetwork | None,
    graphs: Graphs,
    text_of: Graphs | None = None,
    *,
    without_edges: bool = False,
) -> Float[Tensor, "B n C"]:
    """The logits at the questions. text_of: other graphs that the text describes; its edges may be masked."""
    text = graph_tokens(*(graphs if text_of is None else text_of))
    real = text.real & (text.tokens[..., 0] != EDGE) if without_edges else text.real
    states = names = None
    if network is not None:
        with torch.no_grad():  # it stays as it is
            states, names = network(graphs.lengths, graphs.source)[0], graphs.names
    return model(text.tokens, states, names, real=real)[:, -graphs.names.shape[1] :]


def train_model(
    model: TransNar, network: AlgorithmNetwork | None, seed: int, steps: int, *, count: int = 64
) -> None:
    """Train on the answers alone."""
    rng = torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        graphs = training_graphs(count, rng)
        logits = node_logits(model, network, graphs)
        return functional.cross_entropy(logits.flatten(0, 1), answers(graphs).flatten())

    _train(model, loss, steps, 2e-3)


def held_out_graphs(num_nodes: int, count: int = 300) -> Graphs:
    """Graphs that no training has seen, the same for all models."""
    return sample_graphs(count, num_nodes, torch.Generator().manual_seed(10**6 + num_nodes))


def accuracy(found: Int[Tensor, "B n"], graphs: Graphs) -> float:
    """Share of nodes whose answer is right."""
    return (found == answers(graphs)).double().mean().item()


@torch.no_grad()
def model_accuracy(
    model: TransNar,
    network: AlgorithmNetwork | None,
    num_nodes: int,
    *,
    without_edges: bool = False,
) -> float:
    """Share of right answers. without_edges: the tokens of the edges are masked, so the text says little."""
    graphs = held_out_graphs(num_nodes)
    logits = node_logits(model, network, graphs, without_edges=without_edges)
    return accuracy(logits.argmax(-1), graphs)


@torch.no_grad()
def conflict_accuracy(
    model: TransNar, network: AlgorithmNetwork, num_nodes: int
) -> tuple[float, float]:
    """Beside the states of a graph, the text of the next: shares of answers right for the text, for the states."""
    graphs = held_out_graphs(num_nodes)
    described = Graphs(graphs.lengths.roll(1, 0), graphs.source.roll(1, 0), graphs.names)
    found = node_logits(model, network, graphs, described).argmax(-1)
    return accuracy(found, described), accuracy(found, graphs)


def _train(model: nn.Module, loss_of_batch, steps: int, rate: float) -> None:
    """Adam with one cycle of the learning rate, gradients clipped at a norm of 1."""
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=steps, pct_start=0.1
    )
    for _ in range(steps):
        loss = loss_of_batch()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
