"""Exercises of chapter 19's main page: a step of the all-reduce, and how much each micro-batch counts."""

from __future__ import annotations

from dataclasses import replace

from ..specs.parallel.spec import MICRO_BATCH_SCALES, RING_STEP

EXERCISES = (
    replace(RING_STEP, name="ch19.ring_step", points=3),
    replace(MICRO_BATCH_SCALES, name="ch19.micro_batch_scales", points=2),
)
