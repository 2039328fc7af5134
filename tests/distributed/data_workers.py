"""What the workers of test_data_parallel do: in a module of its own, which a process imports quickly."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tested_transformer.distributed.data_parallel import (
    average_gradients,
    broadcast_parameters,
    clip_gradients,
    global_mean,
)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def data():
    made = torch.Generator().manual_seed(1)
    return torch.randn(12, 3, generator=made).double(), torch.randn(12, 2, generator=made).double()


COUNTS = (1, 6, 0, 5)  # examples per worker: ragged, and one has none


def mine(counts=None):
    rank, world = dist.get_rank(), dist.get_world_size()
    x, y = data()
    if counts is None:
        return x[rank::world], y[rank::world]
    start = sum(counts[:rank])
    return x[start : start + counts[rank]], y[start : start + counts[rank]]


def loss_sum(net, x, y):
    return (net(x) - y).square().sum()


def train(kind, steps=3):
    """Parameters after some steps, of our data parallelism or torch's."""
    net = model()
    if dist.get_rank():
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(1.0)
    if kind == "torch":
        net = DistributedDataParallel(net)
    else:
        broadcast_parameters(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    x, y = mine()
    for _ in range(steps):
        optimizer.zero_grad()
        (loss_sum(net, x, y) / len(x)).backward()
        if kind == "ours":
            average_gradients(net)
        optimizer.step()
    return [parameter.detach() for parameter in net.parameters()]


def ragged(weighted):
    """Averaged gradients of a ragged batch: by tokens everywhere, or by each worker's own mean."""
    net = model()
    x, y = mine(COUNTS)
    total = loss_sum(net, x, y)
    (global_mean(total, len(x)) if weighted else total / max(1, len(x))).backward()
    average_gradients(net)
    return [parameter.grad for parameter in net.parameters()]


def unused():
    """Worker 0 alone uses the second model."""
    first, second = model(), model()
    net = nn.ModuleList([first, second])
    x, y = mine()
    loss = loss_sum(first, x, y) + (loss_sum(second, x, y) if dist.get_rank() == 0 else 0)
    loss.backward()
    average_gradients(net)
    return second[0].bias.grad


def clipped(max_norm):
    rank = dist.get_rank()
    parts = [torch.full((2,), rank + 1.0), torch.full((1,), -float(rank))]
    norm = clip_gradients(parts, max_norm)
    return norm, torch.cat(parts)


def no_tokens():
    return global_mean(torch.tensor(0.0), 0)
