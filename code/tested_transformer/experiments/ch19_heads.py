"""What the workers of chapter 19's page about tensor parallelism do: one layer, its heads on several workers."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ..analysis.parallel_costs import Messages
from ..distributed.launch import run_workers
from ..distributed.tensor_parallel import copy_to_workers, sum_over_workers

LENGTH, D, HEADS = 6, 16, 4


def weights():
    """The matrices of queries, keys, values and output of four heads, each (D, D)."""
    made = torch.Generator().manual_seed(0)
    return [torch.randn(D, D, generator=made, dtype=torch.float64) / 4 for _ in range(4)]


def inputs():
    """The layer's input, and the gradient of its output."""
    made = torch.Generator().manual_seed(1)
    return torch.randn(2, LENGTH, D, generator=made, dtype=torch.float64)


def attend(x, w_q, w_k, w_v, w_o, num_heads):
    """Causal attention with some of the heads, and their part of the output."""
    split = [(x @ w.mT).unflatten(-1, (num_heads, -1)) for w in (w_q, w_k, w_v)]  # L H d
    query, key, value = (each.transpose(0, 1) for each in split)  # H L d
    scores = query @ key.mT / query.shape[-1] ** 0.5  # H L L
    future = torch.ones_like(scores[0], dtype=torch.bool).triu(1)
    heads = scores.masked_fill(future, -torch.inf).softmax(-1) @ value  # H L d
    return heads.transpose(0, 1).flatten(1) @ w_o.mT  # L D


def own_part(matrices, rank, world_size):
    """The parts of the four matrices that belong to a worker's heads."""
    *w_qkv, w_o = matrices
    rows = [w.chunk(world_size, dim=0)[rank] for w in w_qkv]
    return [*rows, w_o.chunk(world_size, dim=1)[rank]]  # columns


def parallel_attention(x, own):
    """The whole layer's output; this worker computes its own heads."""
    output = attend(copy_to_workers(x), *own, num_heads=HEADS // dist.get_world_size())
    return sum_over_workers(output)


def without_copy(x, own):
    """The input enters the heads directly: no sum in the backward pass."""
    return sum_over_workers(attend(x, *own, num_heads=HEADS // dist.get_world_size()))


def sums_twice(x, own):
    """The output's sum is summed in the backward pass as well."""
    output = attend(copy_to_workers(x), *own, num_heads=HEADS // dist.get_world_size())
    return sum_over_workers(copy_to_workers(output))


def run(version=parallel_attention):
    """This worker's output, and its gradients with respect to x and to its parts of the matrices."""
    x, gradient = (each.clone() for each in inputs())
    own = own_part(weights(), dist.get_rank(), dist.get_world_size())
    own = [each.clone().requires_grad_() for each in own]
    output = version(x.requires_grad_(), own)
    output.backward(gradient)
    return output.detach(), x.grad, [each.grad for each in own]


def in_one_process():
    """The whole layer's output, and its gradients with respect to x and to the matrices."""
    x, gradient = (each.clone() for each in inputs())
    matrices = [each.requires_grad_() for each in weights()]
    output = attend(x.requires_grad_(), *matrices, num_heads=HEADS)
    output.backward(gradient)
    return output.detach(), x.grad, [each.grad for each in matrices]


def compared(version, num_workers=4):
    """Per worker, gradients / those of one process, as norms: of x, and of the worker's matrices.

    Raises: AssertionError if an output is not that of one process.
    """
    expected, by_x, by_weights = in_one_process()
    ratios = []
    for rank, (output, own_x, own) in enumerate(run_workers(run, version, num_workers=num_workers)):
        torch.testing.assert_close(output, expected)
        wanted = own_part(by_weights, rank, num_workers)
        pairs = zip([own_x, *own], [by_x, *wanted], strict=True)
        ratios.append([float(found.norm() / right.norm()) for found, right in pairs])
    return ratios


def bytes_sent():
    """What this worker sends forward and backward."""
    with Messages() as messages:
        run()
    return messages.total
