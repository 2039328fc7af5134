"""Exercises of chapter 19, on its page about ring attention: merging partial results, and who has which tokens."""

from __future__ import annotations

from dataclasses import replace

from ..specs.parallel.spec import MERGE_OUTPUTS, ZIGZAG_POSITIONS

EXERCISES = (
    replace(MERGE_OUTPUTS, name="ch19.merge_outputs", points=3),
    replace(ZIGZAG_POSITIONS, name="ch19.zigzag_positions", points=2),
)
