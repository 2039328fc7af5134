"""An exercise of chapter 22, on its page about graphs."""

from __future__ import annotations

from dataclasses import replace

from ..specs.transnar.spec import MAX_MESSAGES

EXERCISES = (replace(MAX_MESSAGES, name="ch22.max_messages", points=3),)
