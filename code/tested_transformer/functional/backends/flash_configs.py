"""Which tiles a flash kernel uses: measured ones from flash_configs.json, else a rule.

Nothing is tried out while a program runs: the table is made by `make tune-gpu` on a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from torch import Tensor

TABLE = Path(__file__).parent / "flash_configs.json"
BUCKETS = (2048, 8192)  # lengths up to the first, up to the second, and beyond


@dataclass(frozen=True)
class Config:
    """How a kernel is cut: tiles of rows (queries) and cols (keys), warps, stages of its pipeline."""

    rows: int
    cols: int
    warps: int
    stages: int
    tma: bool = False  # load by descriptors, where strides and alignment allow it
    precision: str = "ieee"  # of float32 products; 16-bit ones know no other


def choose(kernel: str, query: Tensor, length: int, causal: bool, features: list[str]) -> Config:
    """The measured configuration for a call, or the rule's.

    Source: `make tune-gpu` writes the table.
    """
    if not query.is_cuda:
        return Config(32, 32, 4, 1)  # the interpreter
    arch = "sm{}{}".format(*torch.cuda.get_device_capability(query.device))
    key = key_of(kernel, arch, query.dtype, query.shape[-1], length, causal, features)
    return measured().get(key) or rule(kernel, arch, query.dtype, query.shape[-1], features)


def key_of(
    kernel: str, arch: str, dtype: torch.dtype, size: int, length: int, causal: bool,
    features: list[str],
) -> str:  # fmt: skip
    """All that a measurement holds for, in one word."""
    bucket = sum(length > most for most in BUCKETS)
    name = str(dtype).removeprefix("torch.")
    parts = [arch, f"triton{triton_version()}", kernel, f"d{size}", name, f"n{bucket}"]
    return "/".join([*parts, "causal" if causal else "full", *sorted(features)])


def rule(
    kernel: str, arch: str, dtype: torch.dtype, size: int, features: Sequence[str] = ()
) -> Config:
    """What fits, with no register spilled for 16 bits and sizes to 128, as `gpu-compile` checks.

    Descriptors (TMA) save the registers that pointers take; packed documents cannot use them.
    """
    if dtype == torch.float32:
        tile = 64 if size <= 64 else 32 if size <= 128 else 16
        return Config(tile, min(tile, 32), 4, 1)
    if size > 128:
        return Config(64, 32, 4, 1)
    if not arch.startswith(("sm9", "sm10")):  # 99 KB of shared memory, not 227
        return Config(64, 32 if size > 64 else 64, 4, 2)
    tma = "packed" not in features
    if kernel == "key_value" and size <= 64:
        return Config(64, 128, 8, 2, tma)
    if (
        kernel == "key_value"
    ):  # two gradients of 64 x 128 are held; grouped-query attention is one loop more
        return Config(64 if tma and "gqa" not in features else 32, 64, 8, 2, tma)
    if kernel == "query" or not tma:
        return Config(128, 64, 8, 2, tma)
    return Config(128, 128, 8, 2, tma)


@cache
def measured() -> dict[str, Config]:
    """The table of measured configurations; empty if nothing has been measured."""
    if not TABLE.exists():
        return {}
    rows = json.loads(TABLE.read_text(encoding="utf-8"))["configs"]
    return {key: Config(**config) for key, config in rows.items()}


def as_json(config: Config) -> dict[str, int | bool | str]:
    """A row of the table."""
    return asdict(config)


@cache
def triton_version() -> str:
    """Of the installed Triton, without the last number."""
    try:
        return ".".join(version("triton").split(".")[:2])
    except PackageNotFoundError:
        return "none"
