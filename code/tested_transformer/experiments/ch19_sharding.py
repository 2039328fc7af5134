"""What the workers of chapter 19's page about sharding do: FSDP2, what is in memory when, and clipping."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from ..analysis.parallel_costs import Messages

EXAMPLES = 24


class Block(nn.Module):
    """Two linear layers and a residual: the unit that is gathered at once."""

    def __init__(self):
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        """x plus the two layers' output."""
        return x + self.down_proj(torch.relu(self.up_proj(x)))


def new_model():
    """Four blocks, in float64."""
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(4))).double()


def data():
    """Inputs and targets of 24 examples."""
    made = torch.Generator().manual_seed(1)
    return torch.randn(2, EXAMPLES, 8, generator=made, dtype=torch.float64)


# --- Sharding -------------------------------------------------------------------------------------


def shard(model):
    """Let each worker store a part of each parameter; a block is whole only while it computes."""
    for block in model:
        fully_shard(block)
    fully_shard(model)


def held(tensors):
    """How many numbers of some parameters or gradients are in this worker's memory."""
    count = 0
    for tensor in tensors:
        if isinstance(tensor, DTensor):
            tensor = tensor.to_local()  # this worker's shard
        count += 0 if tensor is None else tensor.numel()
    return count


def watch():
    """Parameters and gradients in memory, before, in and after each pass through each block."""
    model, counts = new_model(), []
    shard(model)

    def note(*_):
        gradients = [p.grad for p in model.parameters()]
        counts.append((held(model.parameters()), held(gradients)))

    for block in model:
        block.up_proj.register_forward_hook(note)
        block.up_proj.register_full_backward_hook(note)
    note()
    loss = model(data()[0].requires_grad_()).square().mean()
    note()
    loss.backward()
    note()
    return counts


def bytes_sent():
    """What this worker sends in a forward and a backward pass."""
    model = new_model()
    shard(model)
    with Messages() as messages:
        model(data()[0]).sum().backward()
    return messages.total


# --- Training -------------------------------------------------------------------------------------


def train(steps):
    """The whole parameters after some steps on this worker's part of the examples."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model, (x, y) = new_model(), data()
    shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x[rank::world_size]) - y[rank::world_size]).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return [parameter.full_tensor().detach() for parameter in model.parameters()]


def train_alone(steps):
    """One process, the whole model and all examples."""
    model, (x, y) = new_model(), data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


# --- Clipping -------------------------------------------------------------------------------------


def clip_own_shards(parameters, max_norm):
    """The bug: each worker clips by the norm of what it has."""
    parts = [parameter.grad.to_local() for parameter in parameters]
    norm = torch.cat([part.flatten() for part in parts]).norm()
    for part in parts:
        part *= min(1.0, max_norm / norm.item())


def clipped_gradient(clip):
    """The norm of this worker's shards, and the whole gradient in one vector, clipped to 0.5."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model, (x, y) = new_model(), data()
    shard(model)
    (model(x[rank::world_size]) - y[rank::world_size]).square().mean().backward()
    own = torch.cat([p.grad.to_local().flatten() for p in model.parameters()]).norm().item()
    clip([*model.parameters()], 0.5)
    return own, torch.cat([p.grad.full_tensor().flatten() for p in model.parameters()])
