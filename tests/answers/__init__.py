"""Right and wrong implementations that no Spec was written around: the judge must tell them apart.

A module here is a family. Above a right one stands `@right("attention")`, above a wrong one
`@wrong("attention", "the weights are detached")`: the name of the Spec, of an exercise or of a task,
and what is wrong. Something from a library is handed over: `right("layer_norm")(nn.LayerNorm)`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NamedTuple

from tested_transformer.exercises import EXERCISES
from tested_transformer.homework.assignments import assignment, assignment_names
from tested_transformer.specs import SPECS, Spec


class Answer(NamedTuple):
    """An implementation, the Spec that it is judged by, and its name or what is wrong with it."""

    spec: str
    name: str
    candidate: Any


RIGHT: list[Answer] = []
WRONG: list[Answer] = []


def right(spec: str, name: str = "") -> Callable[[Any], Any]:
    """Say that this is right; `name` is needed where the candidate has none of its own."""

    def note(candidate: Any) -> Any:
        RIGHT.append(Answer(spec, name or candidate.__name__, candidate))
        return candidate

    return note


def wrong(spec: str, name: str) -> Callable[[Any], Any]:
    """Say what is wrong with the function or class below."""

    def note(candidate: Any) -> Any:
        WRONG.append(Answer(spec, name, candidate))
        return candidate

    return note


def spec_named(name: str) -> Spec:
    """A Spec of the package, an exercise or a task of an assignment."""
    return EVERY[name]


def _tasks() -> dict[str, Spec]:
    parts = [part for name in assignment_names() for part in assignment(name).coded]
    return {part.spec.name: part.spec for part in parts if hasattr(part, "spec")}


EVERY = {**SPECS, **EXERCISES, **_tasks()}

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
