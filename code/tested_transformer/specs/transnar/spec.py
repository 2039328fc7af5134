"""The Specs of TransNAR: the largest message, Bellman-Ford step by step, gated cross-attention to nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ... import reference
from ..checks import any_dtype, stays, transposed
from ..compare import Problem, compare
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants

# --- Messages -------------------------------------------------------------------------------------


def _message_arguments(
    rng: np.random.Generator, batch: int, nodes: int, width: int, *, padded: bool = False
) -> dict[str, Any]:
    """Messages most of which are negative, about half of the edges; some padding at both ends."""
    arguments: dict[str, Any] = {
        "sender": rng.normal(size=(batch, nodes, width)) - 2.0,
        "receiver": rng.normal(size=(batch, nodes, width)),
        "edge": rng.normal(size=(batch, nodes, nodes, width)),
        "adjacency": rng.random((batch, nodes, nodes)) < 0.5,
    }
    if padded:
        real = np.ones((batch, nodes), dtype=bool)
        real[0, -1] = real[-1, 0] = False
        arguments["real"] = real
    return arguments


def _message_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, **options) -> Case:
        return Case(label, _message_arguments(rng, *sizes, **options), dtype)

    return [
        case("one node", 1, 1, 2),
        case("two nodes", 1, 2, 3),
        case("three nodes, one feature", 2, 3, 1),
        case("five nodes", 2, 5, 3),
        case("padding", 2, 4, 3, padded=True),
        case("more padding", 3, 6, 2, padded=True),
        case("float32", 2, 5, 4, dtype=torch.float32, padded=True),
        Case("transposed tensors", transposed(_message_arguments(rng, 2, 4, 3))),
    ]


def _message_by_chance(draw: Draw) -> Case:
    batch, nodes, width = draw.one_of(1, 2, 3), draw.one_of(2, 1, 4, 7), draw.one_of(1, 3)
    padded = draw.one_of(False, True) and nodes > 1
    arguments = _message_arguments(draw.numbers, batch, nodes, width, padded=padded)
    return Case("sizes by chance", arguments, any_dtype(draw))


def _one_edge(run: Run, case: Case) -> Problem | None:
    """One edge, from the first node to the last, over which alone something large comes."""
    a = case.arguments
    changes = {name: 0 * a[name] for name in ("sender", "receiver", "edge")}
    changes["adjacency"] = np.zeros_like(a["adjacency"])
    changes["adjacency"][:, 0, -1] = True
    changes["edge"][:, 0, -1] = 3.0
    changes["edge"][:, -1, 0] = 5.0  # an edge that there is not
    found = run.value(case, **changes)[:, -1]
    wanted = np.full_like(found, 3.0)
    return compare(
        wanted, found, 0.0, "with one edge, from the first node to the last, what arrives"
    )


def _no_edges(run: Run, case: Case) -> Problem | None:
    """All messages would be positive; only a node's own is there."""
    changes = {
        "adjacency": np.zeros_like(case.arguments["adjacency"]),
        "sender": case.arguments["sender"] + 20.0,
    }
    wanted, slack = run.expected(case, **changes)
    return compare(wanted, run.value(case, **changes), slack, "without edges, the result")


def _repeated(run: Run, case: Case) -> Problem | None:
    """All nodes send the same: as large as one message."""
    a = case.arguments
    ones = {"sender": np.ones_like(a["sender"]), "receiver": 0 * a["receiver"]}
    changes = ones | {"edge": 0 * a["edge"], "adjacency": np.ones_like(a["adjacency"])}
    return compare(
        np.ones_like(a["receiver"]), run.value(case, **changes), 0.0,
        "where all nodes send 1 to all others, the largest message",
    )  # fmt: skip


def _one_large(run: Run, case: Case) -> Problem | None:
    """The first node sends 7, all others 0."""
    a = case.arguments
    changes = {name: 0 * a[name] for name in ("sender", "receiver", "edge")}
    changes["sender"][:, 0] = 7.0
    changes["adjacency"] = np.ones_like(a["adjacency"])
    wanted = np.full_like(a["receiver"], 7.0)
    found = run.value(case, **changes)
    return compare(wanted, found, 0.0, "where the first node sends 7 and all others 0, the result")


def _all_negative(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    sender = a["sender"] - 20.0
    wanted, slack = run.expected(case, sender=sender)
    found = run.value(case, sender=sender)
    return compare(wanted, found, slack, "where all messages are negative, the result")


def _other_padding(run: Run, case: Case) -> Problem | None:
    """Padding has large states and edges to everyone."""
    a, real = case.arguments, case.arguments["real"]
    padding = ~real[..., None]
    other = case.changed(
        sender=np.where(padding, 50.0, a["sender"]),
        adjacency=a["adjacency"] | ~real[:, :, None] | ~real[:, None, :],
    )
    return stays(run, case, other, "padding has other states and edges", "the result")


def _zeros(run: Run, case: Case) -> Problem | None:
    at = ~case.arguments["real"]
    return compare(
        0 * case.arguments["receiver"][at], run.value(case)[at], 0.0, "of padding, the result"
    )


def _no_padding(case: Case) -> bool:
    return case.arguments.get("real") is None


MAX_MESSAGES = Spec(
    name="max_messages",
    statement="max_messages(sender, receiver, edge, adjacency, *, real): for each node v and feature the maximum of "
    "sender[u] + receiver[v] + edge[u, v] over all u with an edge to v (adjacency[u, v]) and over v itself. real says "
    "which nodes are no padding: padding sends nothing and gets zeros. sender and receiver (B, n, D), edge (B, n, n, "
    "D), adjacency (B, n, n), real (B, n) -> (B, n, D)",
    required=("sender", "receiver", "edge", "adjacency"),
    reference=reference.max_messages,
    baseline=mutants.MessageFormula(),
    cases=_message_cases,
    combine=_message_by_chance,
    num_drawn=4,
    checks=(
        Check(
            "every node also hears itself",
            "A node without edges gets its own message, sender[v] + receiver[v] + edge[v, v].",
            _no_edges,
            when=_no_padding,
        ),
        Check(
            "a repeated message changes nothing",
            "The maximum of equal messages is one of them, however many neighbors send it.",
            _repeated,
            when=_no_padding,
        ),
        Check(
            "the largest message counts",
            "One large message among many small ones is what arrives: no mean, and no sum.",
            _one_large,
            when=_no_padding,
        ),
        Check(
            "a message goes along its edge",
            "Row u and column v of the adjacency matrix and of the edges belong to the edge from u to v.",
            _one_edge,
            when=lambda case: _no_padding(case) and case.arguments["adjacency"].shape[1] > 1,
        ),
        Check(
            "a missing edge sends nothing",
            "What has no edge must not take part in the maximum, not even as 0: fill with minus infinity.",
            _all_negative,
            when=_no_padding,
        ),
        Check(
            "padding gets zeros",
            "Padding hears nobody, and its result is 0.",
            _zeros,
            needs=("real",),
        ),
        Check(
            "padding sends nothing",
            "Neither the states nor the edges of padding count.",
            _other_padding,
            needs=("real",),
        ),
    ),
    mutants=mistakes_in(mutants, "max_messages"),
    chapter=22,
)

# --- Shortest distances ---------------------------------------------------------------------------


def _graph(rng: np.random.Generator, batch: int, nodes: int, steps: int, edges: float) -> dict:
    """Lengths that are sums of eighths: no sum of them rounds."""
    lengths = rng.integers(1, 40, size=(batch, nodes, nodes)) / 8
    lengths[rng.random(lengths.shape) > edges] = np.inf
    source = rng.integers(nodes, size=batch)
    return {"lengths": lengths, "source": source, "num_steps": steps}


def _distance_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64) -> Case:
        return Case(label, _graph(rng, *sizes), dtype)

    chain = np.full((1, 4, 4), np.inf)
    for u, length in ((0, 1.0), (1, 2.0), (2, 0.5)):
        chain[0, u, u + 1] = length
    return [
        case("one node", 1, 1, 1, 0.5),
        case("two nodes", 2, 2, 1, 0.5),
        Case("a chain", {"lengths": chain, "source": np.array([0]), "num_steps": 3}),
        case("no step", 2, 3, 0, 0.5),
        case("no edges", 1, 3, 2, 0.0),
        case("five nodes", 3, 5, 4, 0.4),
        case("all edges", 2, 4, 3, 1.0),
        case("more steps than nodes", 2, 3, 5, 0.5),
        case("float32", 2, 6, 5, 0.3, dtype=torch.float32),
    ]


def _one_edge_far(run: Run, case: Case) -> Problem | None:
    """A chain from the source through all nodes: step t reaches the node after t edges."""
    nodes = case.arguments["lengths"].shape[-1]
    lengths = np.full((1, nodes, nodes), np.inf)
    lengths[0, np.arange(nodes - 1), np.arange(1, nodes)] = 1.0
    wanted = np.full((1, nodes, nodes), np.inf)
    for t in range(nodes):
        wanted[0, t, : t + 1] = np.arange(t + 1)
    found = run.value(case, lengths=lengths, source=np.array([0]), num_steps=nodes - 1)
    return compare(wanted, found, 0.0, "along a chain 0 > 1 > 2 ..., the trace")


def _never_grow(run: Run, case: Case) -> Problem | None:
    trace = run.value(case)
    if trace.ndim == 3 and (trace[:, 1:] > trace[:, :-1]).any():
        b, t, v = np.argwhere(trace[:, 1:] > trace[:, :-1])[0]
        return Problem(f"at most {trace[b, t, v]:g} after step {t + 1}", f"{trace[b, t + 1, v]:g}")
    return None


def _no_path(run: Run, case: Case) -> Problem | None:
    lengths = np.full_like(case.arguments["lengths"], np.inf)
    wanted, slack = run.expected(case, lengths=lengths)
    return compare(wanted, run.value(case, lengths=lengths), slack, "without edges, the trace")


DISTANCE_TRACE = Spec(
    name="distance_trace",
    statement="distance_trace(lengths, source, num_steps): the shortest distances from the source over at most t edges, "
    "for t of 0 to num_steps. lengths[u, v] is the length of the edge from u to v, inf where there is none; its "
    "diagonal is not read. Where no path leads the distance is inf. lengths (B, n, n), source (B) -> "
    "(B, num_steps + 1, n)",
    required=("lengths", "source", "num_steps"),
    reference=reference.distance_trace,
    differentiable=False,
    cases=_distance_cases,
    checks=(
        Check("distances never grow", "A node keeps the distance that it has.", _never_grow),
        Check(
            "what has no path stays infinite",
            "The source is at 0, everything else begins at infinity.",
            _no_path,
        ),
        Check(
            "a step goes along one edge",
            "Every step reads the distances of the step before, and goes from u to v.",
            _one_edge_far,
            when=lambda case: case.arguments["lengths"].shape[-1] > 2,
        ),
    ),
    mutants=mistakes_in(mutants, "distance_trace"),
    chapter=22,
)

# --- Tokens that read nodes -----------------------------------------------------------------------

WEIGHTS = ("w_query", "w_key", "w_value", "w_output")


def _cross_arguments(
    rng: np.random.Generator, batch: int, length: int, nodes: int, heads: int, d: int, *, real=None
) -> dict[str, Any]:
    """Tokens of 5 features, nodes of 4; a gate between -1.5 and 1.5, not near 0."""
    shapes = {"w_query": (5, heads * d), "w_key": (4, heads * d)}
    shapes |= {"w_value": (4, heads * d), "w_output": (heads * d, 5)}
    arguments: dict[str, Any] = {
        "tokens": rng.normal(size=(batch, length, 5)), "nodes": rng.normal(size=(batch, nodes, 4))
    }  # fmt: skip
    arguments |= {name: rng.normal(size=shape) * shape[0] ** -0.5 for name, shape in shapes.items()}
    sign = rng.choice((-1.0, 1.0))
    arguments |= {"gate": np.array(sign * rng.uniform(0.5, 1.5)), "num_heads": heads}
    return arguments if real is None else arguments | {"real": real}


def _cross_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, **options) -> Case:
        return Case(label, _cross_arguments(rng, *sizes, **options), dtype)

    padded = np.array([[True, True, True, False], [False, True, False, True]])
    without = np.array([[True, False, True], [False, False, False]])
    return [
        case("one token, one node", 1, 1, 1, 1, 2),
        case("two nodes", 1, 2, 2, 1, 3),
        case("two heads", 2, 3, 4, 2, 3),
        case("three heads, two texts", 2, 4, 3, 3, 2),
        case("padding nodes", 2, 3, 4, 2, 3, real=padded),
        case("a text without nodes", 2, 2, 3, 1, 3, real=without),
        case("float32", 2, 3, 4, 2, 3, dtype=torch.float32, real=padded),
        case("bfloat16", 1, 3, 4, 1, 3, dtype=torch.bfloat16),
        Case(
            "transposed tensors",
            transposed(_cross_arguments(rng, 2, 3, 4, 2, 3)) | {"gate": np.array(-0.7)},
        ),
    ]


def _cross_by_chance(draw: Draw) -> Case:
    batch, length, nodes = draw.one_of(1, 2, 3), draw.one_of(1, 2, 5), draw.one_of(1, 3, 4)
    heads, d = draw.one_of(1, 2, 3), draw.one_of(1, 2, 4)
    real = draw.numbers.random((batch, nodes)) < 0.7 if draw.one_of(False, True) else None
    arguments = _cross_arguments(draw.numbers, batch, length, nodes, heads, d, real=real)
    return Case("sizes by chance", arguments, any_dtype(draw))


def _has_nodes(case: Case) -> bool:
    """Whether every text has a node to read."""
    real = case.arguments.get("real")
    return real is None or bool(real.any(-1).all())


def _closed(run: Run, case: Case) -> Problem | None:
    tokens, slack = case.arguments["tokens"], 0.0
    if case.dtype != torch.float64:
        tokens = case.tensors()["tokens"].double().numpy()
    found = run.value(case, gate=np.array(0.0))
    return compare(tokens, found, slack, "with a gate of 0, the tokens")


def _added(run: Run, case: Case) -> Problem | None:
    """Tokens 1 larger, with queries of 0: all weights are equal, and the output is 1 larger."""
    w_query = 0 * case.arguments["w_query"]
    one = case.changed(w_query=w_query)
    other = case.changed(w_query=w_query, tokens=case.arguments["tokens"] + 1.0)
    before, after = run.value(one), run.value(other)
    slack = run.expected(one)[1] + run.expected(other)[1] + case.rounding(1) * np.abs(after).max()
    return compare(
        before + 1.0, after, slack, "where all queries are 0, tokens 1 larger: the output"
    )


def _order(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    changes = {"nodes": a["nodes"][:, ::-1]}
    if a.get("real") is not None:
        changes["real"] = a["real"][:, ::-1]
    return stays(
        run, case, case.changed(**changes), "the nodes are numbered backward", "the output"
    )


def _padding(run: Run, case: Case) -> Problem | None:
    nodes = np.where(case.arguments["real"][..., None], case.arguments["nodes"], 3.0)
    return stays(
        run, case, case.changed(nodes=nodes), "padding nodes have other states", "the output"
    )


def _nothing(run: Run, case: Case) -> Problem | None:
    real = np.zeros_like(case.arguments["real"])
    wanted, slack = run.expected(case, real=real)
    return compare(wanted, run.value(case, real=real), slack, "without real nodes, the output")


def _own_graph(run: Run, case: Case) -> Problem | None:
    """Other nodes for the first text: the last one's output stays."""
    nodes = case.arguments["nodes"].copy()
    nodes[0] += 1.0
    other = case.changed(nodes=nodes)
    slack = run.expected(case)[1] + run.expected(other)[1]
    return compare(
        run.value(case)[-1], run.value(other)[-1], slack,
        "where the first graph has other states, the last text's output",
    )  # fmt: skip


GATED_CROSS_ATTENTION = Spec(
    name="gated_cross_attention",
    statement="gated_cross_attention(tokens, nodes, w_query, w_key, w_value, w_output, gate, num_heads, *, real): tokens + "
    "tanh(gate) * (concat of the heads softmax(Q K^T / sqrt(d)) V) w_output, with Q = tokens w_query, K = nodes w_key, "
    "V = nodes w_value, head h the h-th run of d features. Nodes that are not real get no weight; where none is "
    "real, nothing is added. tokens (B, L, D), nodes (B, n, E), w_query (D, Hd), w_key and w_value (E, Hd), w_output "
    "(Hd, D), gate () -> (B, L, D)",
    required=(
        "tokens",
        "nodes",
        "w_query",
        "w_key",
        "w_value",
        "w_output",
        "gate",
        "num_heads",
    ),
    reference=reference.gated_cross_attention,
    baseline=mutants.CrossFormula(),
    cases=_cross_cases,
    combine=_cross_by_chance,
    num_drawn=4,
    checks=(
        Check(
            "a closed gate leaves the tokens",
            "tanh(0) is 0: at the start of training the Transformer is as it was.",
            _closed,
            when=_has_nodes,
        ),
        Check(
            "what is read is added",
            "The tokens themselves come through in full, however far the gate is open.",
            _added,
            when=lambda case: case.dtype == torch.float64 and _has_nodes(case),
        ),
        Check(
            "each text reads its own graph",
            "Text b attends to the nodes of graph b.",
            _own_graph,
            when=lambda case: len(case.arguments["nodes"]) > 1 and _has_nodes(case),
        ),
        Check(
            "padding nodes are not read",
            "Nodes that are not real must get no attention weight.",
            _padding,
            needs=("real",),
            when=_has_nodes,
        ),
        Check(
            "without nodes nothing is added",
            "A text without a graph is left as it is, not NaN.",
            _nothing,
            needs=("real",),
        ),
        Check(
            "nodes have no order",
            "Another numbering of the nodes is the same graph.",
            _order,
            when=lambda case: case.arguments["nodes"].shape[1] > 1,
        ),
    ),
    mutants=mistakes_in(mutants, "gated_cross_attention"),
    chapter=22,
)
