"""Exercises of chapter 17, on its page about fixed patterns."""

from __future__ import annotations

from dataclasses import replace

from ..specs.sparse_patterns.spec import FIXED_MASK, STRIDED_MASK

EXERCISES = (
    replace(STRIDED_MASK, name="ch17.strided_mask", points=1),
    replace(FIXED_MASK, name="ch17.fixed_mask", points=1),
)
