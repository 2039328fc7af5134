"""An exercise of chapter 21, on its page about splines."""

from __future__ import annotations

from dataclasses import replace

from ..specs.splines.spec import BSPLINE_BASIS

EXERCISES = (replace(BSPLINE_BASIS, name="ch21.bspline_basis", points=3),)
