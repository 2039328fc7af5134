"""An exercise of chapter 19, on its page about scale: how many GPUs a batch can use."""

from __future__ import annotations

from dataclasses import replace

from ..specs.parallel.spec import USEFUL_GPUS

EXERCISES = (replace(USEFUL_GPUS, name="ch19.useful_gpus", points=2),)
