"""Exercise of chapter 18, on its page about rotary positions for longer texts: dynamic NTK."""

from __future__ import annotations

from ..specs.dynamic_ntk.spec import DYNAMIC_BASE as SPEC

DYNAMIC_BASE = SPEC.narrowed(
    lambda case: True, name="ch18.dynamic_base", mutants=SPEC.mutants, chapter=18, points=2
)

EXERCISES = (DYNAMIC_BASE,)
