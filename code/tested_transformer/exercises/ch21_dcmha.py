"""An exercise of chapter 21, on its page about composed heads."""

from __future__ import annotations

from ..specs.composed_heads.spec import COMPOSE_HEADS

COMPOSE = COMPOSE_HEADS.narrowed(
    lambda case: not case.is_empty, name="ch21.compose_heads", points=4
)

EXERCISES = (COMPOSE,)
