"""TransNAR's parts in other words: loops, einsum, Dijkstra from SciPy, torch's attention."""

import numpy as np
import torch
from scipy.sparse import csgraph
from torch.nn import functional

from answers import right, wrong
from tested_transformer.data.graphs import distance_trace
from tested_transformer.layers.gated_cross_attention import gated_cross_attention
from tested_transformer.layers.message_passing import max_messages

right("max_messages", "the package's")(max_messages)
right("distance_trace", "the package's")(distance_trace)
right("gated_cross_attention", "the package's")(gated_cross_attention)


@right("max_messages", "receiver by receiver")
def by_receiver(sender, receiver, edge, adjacency, *, real=None):
    batch, nodes, _ = receiver.shape
    real = torch.ones(batch, nodes, dtype=torch.bool) if real is None else real
    rows = []
    for b in range(batch):
        for v in range(nodes):
            from_ = [u for u in range(nodes) if real[b, u] and (adjacency[b, u, v] or u == v)]
            if not real[b, v]:
                rows.append(0 * receiver[b, v])
            else:
                arrived = torch.stack(
                    [sender[b, u] + receiver[b, v] + edge[b, u, v] for u in from_]
                )
                rows.append(arrived.max(0).values)
    return torch.stack(rows).view_as(receiver)


@right("max_messages", "the receiver is added after the maximum")
def receiver_last(sender, receiver, edge, adjacency, *, real=None):
    arrives = adjacency.clone()
    arrives.diagonal(dim1=1, dim2=2).fill_(True)
    if real is not None:
        arrives &= torch.einsum("bi,bj->bij", real.int(), real.int()).bool()
    minus = torch.tensor(-torch.inf, dtype=edge.dtype)
    found = torch.where(arrives[..., None], sender[:, :, None] + edge, minus).amax(1) + receiver
    return found if real is None else torch.where(real[..., None], found, 0.0)


@wrong("max_messages", "the largest of all features decides for all of them")
def one_sender(sender, receiver, edge, adjacency, *, real=None):
    itself = torch.eye(adjacency.shape[-1], dtype=torch.bool)
    arrives = adjacency | itself
    if real is not None:
        arrives = arrives & real[:, :, None] & real[:, None]
    messages = sender[:, :, None] + receiver[:, None] + edge
    total = messages.sum(-1).masked_fill(~arrives, -torch.inf)
    best = total.argmax(1)[:, None, :, None].expand(-1, 1, -1, edge.shape[-1])
    found = messages.gather(1, best)[:, 0]
    return found if real is None else found * real[..., None]


@wrong("max_messages", "no gradient for the edges")
def detached(sender, receiver, edge, adjacency, *, real=None):
    return max_messages(sender, receiver, edge.detach(), adjacency, real=real) + 0 * edge.sum()


@right("distance_trace", "SciPy's Bellman-Ford, over at most t edges by powers")
def by_copies(lengths, source, num_steps):
    """A graph of num_steps + 1 copies of the nodes, where every edge leads into the next copy."""
    nodes, traces = lengths.shape[-1], []
    for each, begin in zip(lengths.double().numpy(), source.tolist(), strict=True):
        big = np.full((nodes * (num_steps + 1),) * 2, np.inf)
        for t in range(num_steps):
            block = each.copy()
            np.fill_diagonal(block, 0.0)
            big[t * nodes : (t + 1) * nodes, (t + 1) * nodes : (t + 2) * nodes] = block
        graph = csgraph.csgraph_from_dense(big, null_value=np.inf)
        found = csgraph.dijkstra(graph, indices=begin)
        traces.append(torch.from_numpy(found).view(num_steps + 1, nodes))
    return torch.stack(traces).to(lengths)


@wrong("distance_trace", "all nodes begin at 0")
def all_zero(lengths, source, num_steps):
    return torch.zeros(len(lengths), num_steps + 1, lengths.shape[-1], dtype=lengths.dtype)


@wrong("distance_trace", "without the first row")
def without_first(lengths, source, num_steps):
    return distance_trace(lengths, source, num_steps + 1)[:, 1:]


@right("gated_cross_attention", "torch's scaled dot product attention")
def by_torch(tokens, nodes, w_query, w_key, w_value, w_output, gate, num_heads, *, real=None):
    def heads(x):
        return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)

    if real is None:
        real = torch.ones(nodes.shape[:2], dtype=torch.bool)
    any_real = real.any(-1)[:, None, None]
    mask = (real | ~real.any(-1, keepdim=True))[:, None, None]
    read = functional.scaled_dot_product_attention(
        heads(tokens @ w_query), heads(nodes @ w_key), heads(nodes @ w_value), attn_mask=mask
    )
    read = read.transpose(1, 2).flatten(2) @ w_output
    return tokens + torch.where(any_real, torch.tanh(gate) * read, 0.0)


@right("gated_cross_attention", "head by head, each with its part of the output matrix")
def by_heads(tokens, nodes, w_query, w_key, w_value, w_output, gate, num_heads, *, real=None):
    parts = [w.chunk(num_heads, -1) for w in (w_query, w_key, w_value)]
    total = tokens
    for query, key, value, output in zip(*parts, w_output.chunk(num_heads), strict=True):
        scores = torch.einsum("bld,bnd->bln", tokens @ query, nodes @ key) / key.shape[1] ** 0.5
        if real is None:
            weights = scores.softmax(-1)
        else:
            there = real[:, None]
            largest = scores.masked_fill(~there, -3e4).amax(-1, keepdim=True)
            powers = (scores - largest).clamp(max=0).exp() * there
            weights = powers / powers.sum(-1, keepdim=True).clamp(min=1e-30)
        total = total + gate.tanh() * (weights @ (nodes @ value) @ output)
    return total


@wrong("gated_cross_attention", "the gate gets no gradient")
def fixed_gate(tokens, nodes, w_query, w_key, w_value, w_output, gate, num_heads, *, real=None):
    found = gated_cross_attention(
        tokens, nodes, w_query, w_key, w_value, w_output, gate.detach(), num_heads, real=real
    )
    return found + 0 * gate


@wrong("gated_cross_attention", "the gate is not bounded")
def linear_gate(tokens, nodes, w_query, w_key, w_value, w_output, gate, num_heads, *, real=None):
    opened = gated_cross_attention(
        tokens,
        nodes,
        w_query,
        w_key,
        w_value,
        w_output,
        gate.new_tensor(20.0),
        num_heads,
        real=real,
    )
    return tokens + gate * (opened - tokens)
