"""What the workers of chapter 19's page about heads and pipelines do: one layer, its heads on several workers."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ..analysis.parallel_costs import Messages
from ..distributed.tensor_parallel import copy_to_workers, sum_over_workers

LENGTH, D, HEADS = 6, 16, 4


def weights():
    """The matrices of queries, keys, values and output of four heads, each (D, D)."""
    made = torch.Generator().manual_seed(0)
    return [torch.randn(D, D, generator=made, dtype=torch.float64) / 4 for _ in range(4)]


def inputs():
    """A text, and the gradient of the output."""
    made = torch.Generator().manual_seed(1)
    return torch.randn(2, LENGTH, D, generator=made, dtype=torch.float64)


def attend(x, w_q, w_k, w_v, w_o, num_heads):
    """Causal attention with as many heads as the rows of w_q hold, and their part of the output."""
    split = [(x @ w.mT).unflatten(-1, (num_heads, -1)) for w in (w_q, w_k, w_v)]  # L H d
    query, key, value = (each.transpose(0, 1) for each in split)  # H L d
    scores = query @ key.mT / query.shape[-1] ** 0.5  # H L L
    future = torch.ones_like(scores[0], dtype=torch.bool).triu(1)
    heads = scores.masked_fill(future, -torch.inf).softmax(-1) @ value  # H L d
    return heads.transpose(0, 1).flatten(1) @ w_o.mT  # L D


def own_heads(x, copy=copy_to_workers, add=sum_over_workers):
    """The whole layer's output; this worker computes some of the heads."""
    rank, world = dist.get_rank(), dist.get_world_size()
    w_q, w_k, w_v, w_o = weights()
    w_q, w_k, w_v = (w.chunk(world, dim=0)[rank] for w in (w_q, w_k, w_v))  # rows: own heads
    w_o = w_o.chunk(world, dim=1)[rank]  # columns: those that read the own heads
    return add(attend(copy(x), w_q, w_k, w_v, w_o, HEADS // world))


def run(version="right"):
    """This worker's output, and its gradient with respect to x."""
    x, gradient = inputs()
    x.requires_grad_()
    if version == "no sum backward":
        output = own_heads(x, copy=lambda x: x)
    elif version == "a sum too many":
        output = own_heads(x, add=lambda x: sum_over_workers(copy_to_workers(x)))
    else:
        output = own_heads(x)
    output.backward(gradient)
    return output.detach(), x.grad


def bytes_sent():
    """What this worker sends forward and backward."""
    with Messages() as messages:
        run()
    return messages.total
