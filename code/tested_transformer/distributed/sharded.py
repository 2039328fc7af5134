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
    """Store model and optimizer, each worker its own part; whoever is interrupted leaves a whole checkpoint.

    The parts are written beside the folder, and exchanged with it when all are there. `load_sharded` finishes
    an exchange that was interrupted.

    Raises: TypeError or ValueError that name the argument.
    Source: pytorch.org/docs, torch.distributed.checkpoint.
    """
    folder = Path(folder)
    _finish_exchange(folder)
    parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    checkpoint.save(parts, checkpoint_id=_beside(folder, "new"))
    if dist.get_rank() == 0:  # all parts are written: save waits for all workers
        shutil.rmtree(_beside(folder, "old"), ignore_errors=True)
        if folder.exists():
            folder.rename(_beside(folder, "old"))
    _finish_exchange(folder)


@checked
def load_sharded(folder: str | Path, model: Model, optimizer: Optimizer) -> None:
    """Read what `save_sharded` stored, in place; the number of workers may be another now.

    Raises: TypeError or ValueError that name the argument; FileNotFoundError where nothing is stored.
    Source: pytorch.org/docs, torch.distributed.checkpoint.
    """
    _finish_exchange(Path(folder))
    if not Path(folder, ".metadata").exists():
        raise FileNotFoundError(f"folder: expected a sharded checkpoint, got {folder}")
    parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    checkpoint.load(parts, checkpoint_id=folder)
    set_state_dict(
        model, optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"]
    )


def _beside(folder: Path, what: str) -> Path:
    """Where the next checkpoint is written, or where the last one waits to be deleted."""
    return folder.with_name(f"{folder.name}.{what}")


def _finish_exchange(folder: Path) -> None:
    """Give a complete new checkpoint its name, where the old one has already left it; all workers wait."""
    new = _beside(folder, "new")
    if dist.get_rank() == 0 and not folder.exists() and Path(new, ".metadata").exists():
        new.rename(folder)
        shutil.rmtree(_beside(folder, "old"), ignore_errors=True)
    dist.barrier()
