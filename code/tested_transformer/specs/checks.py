"""What the checks of several families have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from .case import Case
from .compare import Problem, compare, unchanged
from .run import Run

_VARIED: WeakKeyDictionary[Case, dict[str, Case]] = WeakKeyDictionary()


def varied(case: Case, name: str, **changes: Any) -> Case:
    """The case with some arguments replaced: the same object for the same name, so that what is expected
    of it is computed once."""
    known = _VARIED.setdefault(case, {})
    if name not in known:
        known[name] = replace(case, arguments={**case.arguments, **changes}, simpler=tuple)
    return known[name]


def as_expected(run: Run, case: Case, what: str = "") -> Problem | None:
    """The candidate's answer to a case against the reference's."""
    expected, tolerance = run.expected(case)
    return compare(expected, run.value(case), tolerance, what)


def stays(run: Run, case: Case, other: Case, when: str, what: str = "the answer") -> Problem | None:
    """The candidate's answers to two cases that must have the same one: both of them round."""
    tolerance = run.expected(case)[1] + run.expected(other)[1]
    return unchanged(run.value(case), run.value(other), tolerance, when, what)
