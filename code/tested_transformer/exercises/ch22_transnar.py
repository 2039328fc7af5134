"""Exercises of chapter 22, on its pages about graphs."""

from __future__ import annotations

from dataclasses import replace

from ..specs.transnar.spec import GATED_CROSS_ATTENTION, MAX_MESSAGES

EXERCISES = (
    replace(MAX_MESSAGES, name="ch22.max_messages", points=3),
    replace(GATED_CROSS_ATTENTION, name="ch22.gated_cross_attention", points=3),
)
