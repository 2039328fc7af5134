"""The answers to the exercises on chapter 22's pages about graphs."""

import torch

from tested_transformer.layers.gated_cross_attention import gated_cross_attention
from tested_transformer.layers.message_passing import max_messages

from . import right, wrong

right("ch22.max_messages", "the package's")(max_messages)


@right("ch22.max_messages", "a loop over the senders")
def by_sender(sender, receiver, edge, adjacency, *, real=None):
    nodes = receiver.shape[1]
    real = torch.ones(receiver.shape[:2], dtype=torch.bool) if real is None else real
    largest = torch.full_like(receiver, -torch.inf)
    for u in range(nodes):
        hears = (adjacency[:, u] | (torch.arange(nodes) == u)) & real[:, u, None]
        message = sender[:, u, None] + receiver + edge[:, u]
        largest = torch.where(hears[..., None], torch.maximum(largest, message), largest)
    return torch.where(real[..., None], largest, 0.0)


@wrong("ch22.max_messages", "the edge to itself has no features")
def bare_loop(sender, receiver, edge, adjacency, *, real=None):
    itself = torch.eye(receiver.shape[1], dtype=torch.bool)
    return max_messages(
        sender, receiver, edge.masked_fill(itself[..., None], 0.0), adjacency, real=real
    )


right("ch22.gated_cross_attention", "the package's")(gated_cross_attention)


@right("ch22.gated_cross_attention", "head by head")
def by_head(tokens, nodes, w_query, w_key, w_value, w_output, gate, num_heads, *, real=None):
    real = torch.ones(nodes.shape[:2], dtype=torch.bool) if real is None else real
    some = real.any(-1)[:, None, None]  # B 1 1
    keep = (real[:, None] | ~some).to(tokens)  # B 1 n
    size, read = w_query.shape[1] // num_heads, 0
    for head in range(num_heads):
        run = slice(head * size, (head + 1) * size)
        query, key, value = tokens @ w_query[:, run], nodes @ w_key[:, run], nodes @ w_value[:, run]
        scores = (query @ key.mT / size**0.5).masked_fill(keep == 0, -torch.inf)
        read = read + scores.softmax(-1) @ value @ w_output[run]
    return tokens + gate.tanh() * read * some


@wrong("ch22.gated_cross_attention", "the gate is not squashed")
def linear_gate(tokens, nodes, w_query, w_key, w_value, w_output, gate, num_heads, *, real=None):
    arguments = (tokens, nodes, w_query, w_key, w_value, w_output)
    return tokens + gate * (
        gated_cross_attention(*arguments, 20 + 0 * gate, num_heads, real=real) - tokens
    )
