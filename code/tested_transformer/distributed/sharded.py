"""Sharded models: every worker stores a part of each parameter, gradient and optimizer state (FSDP2, torch's own)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer

from ..bounds import Where
from ..shapes import checked

__all__ = ["load_sharded", "save_sharded", "shard_model"]

Connected = Where("a call in a worker of a process group", lambda _: dist.is_initialized())
Model = Annotated[nn.Module, Connected]


@checked
def shard_model(model: Model, *, units: type[nn.Module] = nn.Linear) -> None:
    """Keep 1 / N of each parameter on each of N workers, in place; a unit is whole only while it computes.

    units: the layers that are gathered one at a time, such as a model's blocks: what is not in one of
        them is gathered with the whole model. Call it before the optimizer is made.

    Raises: TypeError or ValueError that name the argument.
    Source: Zhao et al. 2023 (PyTorch FSDP), section 3; pytorch.org/docs, torch.distributed.fsdp.fully_shard.
    """
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in [*model.modules()][1:]:
        if isinstance(module, units):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)


@checked
def save_sharded(folder: str | Path, model: Model, optimizer: Optimizer) -> None:
    """Store model and optimizer, each worker its own part; whoever is interrupted leaves the old folder whole.

    Raises: TypeError or ValueError that name the argument.
    Source: pytorch.org/docs, torch.distributed.checkpoint.
    """
    folder = Path(folder)
    new = folder.with_name(f"{folder.name}.new")
    parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    checkpoint.save(parts, checkpoint_id=new)
    if dist.get_rank() == 0:  # all parts are written: save waits for all workers
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
    dist.barrier()


@checked
def load_sharded(folder: str | Path, model: Model, optimizer: Optimizer) -> None:
    """Read what `save_sharded` stored, in place; the number of workers may be another now.

    Raises: TypeError or ValueError that name the argument; FileNotFoundError where nothing is stored.
    Source: pytorch.org/docs, torch.distributed.checkpoint.
    """
    if not Path(folder, ".metadata").exists():
        raise FileNotFoundError(f"folder: expected a sharded checkpoint, got {folder}")
    parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    checkpoint.load(parts, checkpoint_id=folder)
    set_state_dict(
        model, optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"]
    )
