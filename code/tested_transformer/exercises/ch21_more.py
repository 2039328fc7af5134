"""An exercise of chapter 21, on its page about three more changes to the block."""

from __future__ import annotations

from ..specs.hyper_connections.spec import HYPER_CONNECTION

HYPER = HYPER_CONNECTION.narrowed(
    lambda case: not case.is_empty, name="ch21.hyper_connection", points=3
)

EXERCISES = (HYPER,)
