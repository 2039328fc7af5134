"""The weights of a YOCO in one row, and by their names."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch

from ...models.yoco import Yoco, YocoConfig


@cache
def shapes(config: YocoConfig) -> dict[str, tuple[int, ...]]:
    """Every weight of the model by name."""
    with torch.random.fork_rng(devices=[]):
        return {name: tuple(w.shape) for name, w in Yoco(config).named_parameters()}


def by_name(weights: Any, config: YocoConfig) -> dict[str, Any]:
    """All weights in one row, split into what each name stands for: of an array, or of a tensor."""
    found, start = {}, 0
    for name, shape in shapes(config).items():
        size = math.prod(shape)
        found[name] = weights[start : start + size].reshape(shape)
        start += size
    return found


def number_of(config: YocoConfig) -> int:
    """How many numbers the weights are."""
    return sum(math.prod(shape) for shape in shapes(config).values())
