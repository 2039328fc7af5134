"""The answers to the exercise on chapter 22's page about graphs."""

import torch

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
