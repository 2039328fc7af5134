"""An exercise of chapter 19, on its page about pipelines: which stage computes what, and when."""

from __future__ import annotations

from dataclasses import replace

from ..specs.parallel.spec import TIMETABLE

EXERCISES = (replace(TIMETABLE, name="ch19.timetable", points=2),)
