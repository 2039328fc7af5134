"""An exercise of chapter 22, on its page about a browser."""

from __future__ import annotations

from dataclasses import replace

from ..specs.browsing.spec import BRADLEY_TERRY

EXERCISES = (replace(BRADLEY_TERRY, name="ch22.bradley_terry_loss", points=2),)
