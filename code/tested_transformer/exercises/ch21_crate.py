"""An exercise of chapter 21, on its page about CRATE."""

from __future__ import annotations

from ..specs.coding_rate.spec import ISTA_STEP

ISTA = ISTA_STEP.narrowed(lambda case: not case.is_empty, name="ch21.ista_step", points=3)

EXERCISES = (ISTA,)
