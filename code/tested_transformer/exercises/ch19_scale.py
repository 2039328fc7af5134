"""An exercise of chapter 19, on its page about scale: the tokens that hide communication."""

from __future__ import annotations

from dataclasses import replace

from ..specs.parallel.spec import TOKENS_TO_HIDE

EXERCISES = (replace(TOKENS_TO_HIDE, name="ch19.tokens_to_hide", points=2),)
