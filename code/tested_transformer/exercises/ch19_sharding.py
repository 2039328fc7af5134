"""Exercises of chapter 19, on its page about sharding: the norm of what is spread out, and the order of an epoch."""

from __future__ import annotations

from dataclasses import replace

from ..specs.parallel.spec import EPOCH_INDICES, GLOBAL_NORM

EXERCISES = (
    replace(GLOBAL_NORM, name="ch19.global_norm", points=2),
    replace(EPOCH_INDICES, name="ch19.epoch_indices", points=2),
)
