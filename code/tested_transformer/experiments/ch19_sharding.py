"""What the workers of chapter 19's page about sharding do: FSDP2 at work, checkpoints, and a worker that dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from ..analysis.parallel_costs import Messages
from ..distributed.data_parallel import indices_of_worker
from ..distributed.sharded import load_sharded, save_sharded

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


def held(model):
    """How many numbers of the parameters are in this worker's memory now."""
    parts = (parameter for parameter in model.parameters())
    return sum(
        each.to_local().numel() if hasattr(each, "to_local") else each.numel() for each in parts
    )


def watch():
    """Numbers in memory: at rest, while each block computes, and at rest again."""
    model = new_model()
    whole = held(model)
    shard(model)
    counts = [held(model)]
    for block in model:
        block.up_proj.register_forward_hook(lambda *_: counts.append(held(model)))
    model(data()[0])
    return whole, [*counts, held(model)]


def bytes_sent():
    """What this worker sends in a forward and a backward pass."""
    model = new_model()
    shard(model)
    with Messages() as messages:
        model(data()[0]).sum().backward()
    return messages.total


# --- Training -------------------------------------------------------------------------------------


def norm_of_own_shards(model):
    """The norm of what this worker has of the gradient: not the one to clip by."""
    parts = [parameter.grad.to_local().flatten() for parameter in model.parameters()]
    return torch.cat(parts).norm().item()


def train(folder, first, last, dies_at=None, victim=1):
    """Steps `first` to `last - 1`, from the checkpoint if there is one; parameters, and norms.

    Norms: in each step that of the whole gradient, and that of this worker's shards.

    dies_at: the step in which the worker `victim` is killed.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    model, (x, y) = new_model(), data()
    shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if first:
        load_sharded(Path(folder, "checkpoint"), model, optimizer)
    norms = []
    for step in range(first, last):
        own = indices_of_worker(EXAMPLES, rank=rank, world_size=world, epoch=step)
        optimizer.zero_grad()
        (model(x[own]) - y[own]).square().mean().backward()
        own_norm = norm_of_own_shards(model)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # of all workers' shards
        norms.append((norm.full_tensor().item(), own_norm))
        if step == dies_at and rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        save_sharded(Path(folder, "checkpoint"), model, optimizer)
    return [parameter.full_tensor().detach() for parameter in model.parameters()], norms


def train_alone(steps):
    """One process, the whole batch: every epoch's order has all 24 examples."""
    model, (x, y) = new_model(), data()
    optimizer, norms = torch.optim.AdamW(model.parameters(), lr=0.01), []
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()], norms


# --- Checkpoints, in plain PyTorch ----------------------------------------------------------------


def save(folder, model, optimizer):
    """Each worker writes its own parts, to files of its own."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    parts = {"model": model_state, "optimizer": optimizer_state}
    checkpoint.save(parts, checkpoint_id=folder)


def load(folder, model, optimizer):
    """Each worker reads what belongs to its own parts, from whichever file has it."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    parts = {"model": model_state, "optimizer": optimizer_state}
    checkpoint.load(parts, checkpoint_id=folder)  # in place
    set_state_dict(
        model, optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"]
    )
