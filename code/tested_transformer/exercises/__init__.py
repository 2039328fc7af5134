"""The exercises of the chapters. An exercise is a Spec with points."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

CHAPTERS = sorted(
    each.name for each in iter_modules(__path__)
)  # a module of a chapter lists EXERCISES

EXERCISES = {
    spec.name: spec
    for chapter in CHAPTERS
    for spec in import_module(f"{__name__}.{chapter}").EXERCISES
}
