"""Random directed graphs, the shortest distances in them step by step, and their text."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..bounds import AtLeast, Below, NonNegativeFloat, NonNegativeInt, PositiveInt
from ..errors import argument_error
from ..shapes import checked

__all__ = ["GraphTokens", "Graphs", "distance_trace", "graph_text", "graph_tokens", "sample_graphs"]

SOURCE, EDGE, QUESTION = range(3)  # the kinds of tokens: "from a", "a>b:2", "?b"


class Graphs(NamedTuple):
    """Directed graphs of n nodes: the lengths of the edges, the source, and the name of each node.

    lengths (B, n, n): row u, column v is the length of the edge from u to v, inf where there is none.
    source (B): the node that distances are counted from. names (B, n): numbers, all different in a graph.
    """

    lengths: Tensor
    source: Tensor
    names: Tensor


class GraphTokens(NamedTuple):
    """The text of graphs: tokens (B, L, 4) of kind, first name, second name and length; real (B, L)."""

    tokens: Tensor
    real: Tensor


@checked
def sample_graphs(
    count: NonNegativeInt,
    num_nodes: PositiveInt,
    generator: torch.Generator,
    *,
    num_names: Annotated[int, AtLeast(1)] = 32,
    mean_degree: NonNegativeFloat = 2.0,
    max_length: PositiveInt = 3,
) -> Graphs:
    """Sample graphs whose edges are independent: a node has `mean_degree` edges to others on average.

    Lengths are whole numbers from 1 to `max_length`, names are sampled without repetition.

    Shapes: lengths (B, n, n), source (B), names (B, n), with B of count and n of num_nodes.
    Raises: TypeError or ValueError that name the argument.
    Source: Erdos-Renyi graphs, as in the CLRS benchmark (Velickovic et al. 2022).
    """
    if num_nodes > num_names:
        raise argument_error(ValueError, "num_nodes", num_nodes, f"at most num_names = {num_names}")
    probability = mean_degree / max(num_nodes - 1, 1)
    square = (count, num_nodes, num_nodes)
    edges = torch.rand(square, generator=generator) < probability
    edges &= ~torch.eye(num_nodes, dtype=torch.bool)  # no edge from a node to itself
    lengths = torch.randint(1, max_length + 1, square, generator=generator).float()
    source = torch.randint(num_nodes, (count,), generator=generator)
    names = torch.rand(count, num_names, generator=generator).argsort(-1)[:, :num_nodes]
    return Graphs(lengths.masked_fill(~edges, torch.inf), source, names)


@checked
def distance_trace(
    lengths: Float[Tensor, "B n n"],
    source: Annotated[Int[Tensor, " B"], AtLeast(0), Below("n")],
    num_steps: NonNegativeInt,
) -> Float[Tensor, "B T n"]:
    """Bellman-Ford, all nodes at once: after step t, the shortest distance over at most t edges.

    A step takes for each node the minimum of its own distance and of distance + length over the edges
    that end there. The source is at 0, all others begin at inf, and stay there if no path leads to them.
    With all lengths 1 this is breadth-first search. What stands on the diagonal of lengths is not read.

    Shapes: lengths (B, n, n), inf where there is no edge, source (B) -> (B, num_steps + 1, n).
    Raises: TypeError or ValueError that name the argument.
    Source: Bellman 1958; Ford 1956.

    >>> inf = torch.inf
    >>> lengths = torch.tensor([[[inf, 1.0, 5.0], [inf, inf, 2.0], [inf, inf, inf]]])
    >>> distance_trace(lengths, torch.tensor([0]), 2)
    tensor([[[0., inf, inf],
             [0., 1., 5.],
             [0., 1., 3.]]])
    """
    num_nodes = lengths.shape[-1]
    itself = torch.eye(num_nodes, dtype=torch.bool, device=lengths.device)
    lengths = lengths.masked_fill(itself, 0.0)  # to stay costs nothing
    nodes = torch.arange(num_nodes, device=lengths.device)
    distance = lengths.new_zeros(lengths.shape[:2])  # B n
    distance = distance.masked_fill(nodes != source[:, None], torch.inf)
    trace = [distance]
    for _ in range(num_steps):
        distance = (distance[:, :, None] + lengths).amin(1)  # B n, the minimum over u
        trace.append(distance)
    return torch.stack(trace, 1)


@checked
def graph_tokens(
    lengths: Float[Tensor, "B n n"],
    source: Annotated[Int[Tensor, " B"], AtLeast(0), Below("n")],
    names: Annotated[Int[Tensor, "B n"], AtLeast(0)],
) -> GraphTokens:
    """The text of each graph as tokens: its source, its edges, padding, and a question for each node.

    A token has four fields: kind (0 source, 1 edge, 2 question), first name, second name, length. A
    field that a kind does not have repeats the name, or is 0. The last n tokens are the questions.

    Shapes: lengths (B, n, n), source (B), names (B, n) -> tokens (B, L, 4), real (B, L), with L of
        1 + n + the largest number of edges.
    Raises: TypeError or ValueError that name the argument.
    """
    count, num_nodes = names.shape
    present = lengths.isfinite().flatten(1)  # B n*n
    most = int(present.sum(-1).max()) if count else 0
    order = (~present).int().argsort(dim=-1, stable=True)[:, :most]  # edges first, in their order
    here = present.gather(1, order)  # B E
    first, second = names.gather(1, order // num_nodes), names.gather(1, order % num_nodes)
    length = lengths.flatten(1).gather(1, order).masked_fill(~here, 0.0).long()
    begin = names.gather(1, source[:, None])  # B 1
    parts = [
        _fields(SOURCE, begin, begin, 0 * begin),
        _fields(EDGE, first, second, length).masked_fill(~here[..., None], 0),
        _fields(QUESTION, names, names, 0 * names),
    ]
    ones = [torch.ones_like(part[..., 0], dtype=torch.bool) for part in parts]
    return GraphTokens(torch.cat(parts, 1), torch.cat((ones[0], here, ones[2]), 1))


@checked
def graph_text(tokens: Annotated[Int[Tensor, "L 4"], AtLeast(0)], real: Bool[Tensor, " L"]) -> str:
    """The tokens of one graph in writing: "from 3", "3>1:2", "?1", separated by blanks.

    Shapes: tokens (L, 4), real (L).
    Raises: TypeError or ValueError that name the argument.

    >>> lengths = torch.tensor([[[torch.inf, 2.0], [torch.inf, torch.inf]]])
    >>> text = graph_tokens(lengths, torch.tensor([0]), torch.tensor([[3, 1]]))
    >>> graph_text(text.tokens[0], text.real[0])
    'from3 3>1:2 ?3 ?1'
    """
    forms = {SOURCE: "from{0}", EDGE: "{0}>{1}:{2}", QUESTION: "?{0}"}
    return " ".join(forms[kind].format(*fields) for kind, *fields in tokens[real].tolist())


def _fields(kind: int, first: Tensor, second: Tensor, length: Tensor) -> Tensor:
    """Tokens of one kind, (B, L, 4)."""
    return torch.stack((torch.full_like(first, kind), first, second, length), -1)
