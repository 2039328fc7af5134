"""What the workers of chapter 19's page about checkpoints do: save, load, and one of them dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from ..distributed.data_parallel import indices_of_worker
from .ch19_sharding import EXAMPLES, data, new_model, shard

STEPS_PER_EPOCH = 3  # of 8 examples each


# --- Checkpoints ----------------------------------------------------------------------------------


def save(folder, step, model, optimizer):
    """Each worker writes its own parts, to files of its own, after `step` steps."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    parts = {"model": model_state, "optimizer": optimizer_state, "step": step}
    checkpoint.save(parts, checkpoint_id=Path(folder, f"step-{step:06}"))


def load(folder, model, optimizer):
    """Each worker reads its own parts of the newest complete checkpoint; how many steps were done."""
    newest = max(Path(folder).glob("step-*/.metadata"), default=None)
    if newest is None:
        return 0
    model_state, optimizer_state = get_state_dict(model, optimizer)
    parts = {"model": model_state, "optimizer": optimizer_state, "step": 0}
    checkpoint.load(parts, checkpoint_id=newest.parent)  # fills in parts
    set_state_dict(
        model, optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"]
    )
    return parts["step"]


# --- Training -------------------------------------------------------------------------------------


def examples_of_step(step):
    """This worker's part of the 8 examples of a step: an epoch has 3 steps."""
    epoch, number = divmod(step, STEPS_PER_EPOCH)
    own = indices_of_worker(
        EXAMPLES, rank=dist.get_rank(), world_size=dist.get_world_size(), epoch=epoch
    )
    return own.chunk(STEPS_PER_EPOCH)[number]


def train(folder, last, dies_at=None, victim=1):
    """From the newest checkpoint, or from the beginning, to step `last`; the whole parameters.

    dies_at: the step in which the worker `victim` is killed.
    """
    model, (x, y) = new_model(), data()
    shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(load(folder, model, optimizer), last):
        own = examples_of_step(step)
        optimizer.zero_grad()
        (model(x[own]) - y[own]).square().mean().backward()
        if step == dies_at and dist.get_rank() == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        save(folder, step + 1, model, optimizer)
    return [parameter.full_tensor().detach() for parameter in model.parameters()]


def train_alone(last):
    """One process with the whole model and all 8 examples of each step, without checkpoints."""
    model, (x, y) = new_model(), data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(last):
        epoch, number = divmod(step, STEPS_PER_EPOCH)
        order = indices_of_worker(EXAMPLES, rank=0, world_size=1, epoch=epoch)
        own = order.chunk(STEPS_PER_EPOCH)[number]
        optimizer.zero_grad()
        (model(x[own]) - y[own]).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]
