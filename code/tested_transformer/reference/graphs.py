"""The slow truth of algorithms on graphs and of tokens that read nodes: edge by edge, query by query."""

from __future__ import annotations

import numpy as np

from .attention import _wide, dot, softmax


def max_messages(sender, receiver, edge, adjacency, *, real=None):
    """For each node the largest message that arrives, and its own; padding sends nothing and gets zeros.

    Shapes: sender and receiver (B, n, D), edge (B, n, n, D), adjacency (B, n, n), real (B, n) -> (B, n, D).
    Source: Neural Execution of Graph Algorithms, max aggregation.
    """
    sender, receiver, edge = map(_wide, (sender, receiver, edge))
    batch, nodes, width = receiver.shape
    output = np.zeros((batch, nodes, width), receiver.dtype)
    for b, v in np.ndindex(batch, nodes):
        if real is not None and not real[b, v]:
            continue
        arrived = []
        for u in range(nodes):
            sends = real is None or real[b, u]
            if sends and (adjacency[b, u, v] or u == v):
                arrived.append(sender[b, u] + receiver[b, v] + edge[b, u, v])
        for feature in range(width):
            output[b, v, feature] = max(message[feature] for message in arrived)
    return output


def distance_trace(lengths, source, num_steps):
    """Bellman-Ford in rounds: each round relaxes every edge with the distances of the round before.

    Shapes: lengths (B, n, n), inf without an edge, source (B) -> (B, num_steps + 1, n).
    Source: Bellman 1958; Ford 1956.
    """
    lengths = _wide(lengths)
    batch, nodes, _ = lengths.shape
    trace = np.full((batch, num_steps + 1, nodes), np.inf, lengths.dtype)
    for b in range(batch):
        trace[b, 0, source[b]] = 0.0
        for t in range(1, num_steps + 1):
            trace[b, t] = trace[b, t - 1]
            for u, v in np.ndindex(nodes, nodes):
                if u != v and np.isfinite(lengths[b, u, v]):
                    trace[b, t, v] = min(trace[b, t, v], trace[b, t - 1, u] + lengths[b, u, v])
    return trace


def gated_cross_attention(
    tokens, nodes, w_query, w_key, w_value, w_output, gate, num_heads, *, real=None
):
    """Each token, head by head, attends to the real nodes of its graph; tanh(gate) of it is added.

    Shapes: tokens (B, L, D), nodes (B, n, E), w_query (D, Hd), w_key and w_value (E, Hd), w_output (Hd, D),
        gate (), real (B, n) -> (B, L, D).
    Source: Flamingo's tanh gate; TransNAR.
    """
    tokens, nodes, w_query, w_key, w_value, w_output, gate = map(
        _wide, (tokens, nodes, w_query, w_key, w_value, w_output, gate)
    )
    output, d = tokens.copy(), w_query.shape[1] // num_heads
    for b, i in np.ndindex(tokens.shape[:2]):
        there = [j for j in range(nodes.shape[1]) if real is None or real[b, j]]
        if not there:
            continue
        read = np.zeros(w_value.shape[1], tokens.dtype)
        for h in range(num_heads):
            part = slice(h * d, (h + 1) * d)
            query = tokens[b, i] @ w_query[:, part]
            keys, values = (nodes[b, there] @ w[:, part] for w in (w_key, w_value))
            scores = np.array([dot(query, key) / np.sqrt(d) for key in keys])
            for weight, value in zip(softmax(scores), values, strict=True):
                read[part] += weight * value
        output[b, i] += np.tanh(gate) * (read @ w_output)
    return output
