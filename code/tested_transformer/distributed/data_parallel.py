"""Data parallelism: every worker has the whole model and a part of the batch; their gradients are averaged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..bounds import NonNegativeInt, PositiveFloat, PositiveInt, Seed, Where
from ..shapes import checked

__all__ = [
    "average_gradients", "broadcast_parameters", "clip_gradients", "global_mean", "indices_of_worker",
]  # fmt: skip

Connected = Where("a call in a worker of a process group", lambda _: dist.is_initialized())
Model = Annotated[nn.Module, Connected]


@checked
def broadcast_parameters(model: Model) -> None:
    """Give every worker the parameters and buffers of worker 0, in place.

    Raises: TypeError or ValueError that name the argument.
    Source: Li et al. 2020 (PyTorch Distributed), section 4.1.
    """
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)


@checked
def average_gradients(model: Model) -> None:
    """All-reduce: afterwards each worker's gradients are the mean of all workers', in place.

    A worker that did not use a parameter takes part with zeros: all have to send the same messages.

    Raises: TypeError or ValueError that name the argument.
    Source: Li et al. 2020 (PyTorch Distributed), section 3.1.
    """
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)  # the sum
            parameter.grad /= dist.get_world_size()


@checked
def global_mean(
    total: Annotated[Float[Tensor, ""], Connected], count: NonNegativeInt
) -> Float[Tensor, ""]:
    """A loss whose averaged gradient is that of one mean over all workers' tokens.

    total: the sum of the losses of this worker's tokens; count: how many there are. The workers' own means would
    weigh a token of a short text more than one of a long text.

    Shapes: () -> (). Raises: ValueError if no worker has a token.
    Source: huggingface/transformers issue 34242.
    """
    everywhere = torch.tensor(float(count), device=total.device)
    dist.all_reduce(everywhere)
    if not everywhere:
        raise ValueError("count: expected a token on one worker at least, got 0 on all")
    return total * dist.get_world_size() / everywhere  # the average divides by the world size again


@checked
def clip_gradients(
    gradients: Annotated[Iterable[Tensor], Connected], max_norm: PositiveFloat
) -> Float[Tensor, ""]:
    """Shrink gradients of which each worker holds a part, in place, by the norm of the whole.

    Shapes: any -> (), the norm before. Where each worker holds all gradients, the averaged ones,
        `torch.nn.utils.clip_grad_norm_` is right.
    Raises: TypeError or ValueError that name the argument.
    Source: pytorch/pytorch issue 72548.
    """
    gradients = list(gradients)
    squares = torch.stack([gradient.double().square().sum() for gradient in gradients]).sum()
    dist.all_reduce(squares)
    norm = squares.sqrt()
    for gradient in gradients:
        gradient *= torch.clamp(max_norm / (norm + 1e-6), max=1.0).to(gradient.dtype)
    return norm


@checked
def indices_of_worker(
    length: PositiveInt, *, rank: NonNegativeInt, world_size: PositiveInt, epoch: NonNegativeInt,
    seed: Seed = 0,
) -> Int[Tensor, " n"]:  # fmt: skip
    """Which examples a worker reads in an epoch: its share of an order that all workers agree on.

    Every epoch has another order; without `epoch` in the seed all would have the first. All workers get equally
    many, or some would wait for messages that never come: the first examples are repeated at the end.

    Shapes: -> (ceil(length / world_size)).
    Raises: TypeError or ValueError that name the argument.
    Source: pytorch.org/docs, torch.utils.data.distributed.DistributedSampler.

    >>> [indices_of_worker(5, rank=n, world_size=2, epoch=0).tolist() for n in (0, 1)]
    [[4, 1, 2], [0, 3, 4]]
    """
    order = torch.randperm(length, generator=torch.Generator().manual_seed(seed + epoch))
    each = -(-length // world_size)
    repeats = -(-each * world_size // length)
    return order.repeat(repeats)[: each * world_size][rank::world_size]
