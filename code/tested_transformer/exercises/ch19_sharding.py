"""Exercises of chapter 19's page about sharding: one linear layer on several workers, and the norm of its gradient."""

from __future__ import annotations

from dataclasses import replace

from ..specs.parallel.spec import FSDP_LINEAR, GLOBAL_NORM

EXERCISES = (
    replace(FSDP_LINEAR, name="ch19.fsdp_linear", points=3),
    replace(GLOBAL_NORM, name="ch19.global_norm", points=2),
)
