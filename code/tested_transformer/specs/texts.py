"""Answers of text in place of numbers: lists of strings, a string, pairs of strings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import argument_error, type_of
from .case import Case
from .compare import Problem
from .run import Run
from .spec import EQUAL


def as_strings(strings: Sequence[str]) -> np.ndarray:
    """A list of strings as an array, whose comparison is theirs."""
    array = np.empty(len(strings), dtype=object)
    array[:] = strings
    return array


def read_strings(answer: Any, arguments: dict[str, Any]) -> np.ndarray:
    """An answer that must be a list of strings.

    Raises: TypeError for anything else.
    """
    if not isinstance(answer, list | tuple) or not all(isinstance(each, str) for each in answer):
        raise argument_error(TypeError, "the answer", type_of(answer), "a list of strings")
    return as_strings(answer)


def read_text(answer: Any, arguments: dict[str, Any]) -> np.ndarray:
    """An answer that must be a string."""
    return read_strings([answer], arguments)


def read_pairs(answer: Any, arguments: dict[str, Any]) -> np.ndarray:
    """An answer that must be a list of pairs of strings, none of which has a space in it."""
    return read_strings([" ".join(pair) for pair in answer], arguments)


def around(strings: Sequence[str], place: int) -> str:
    """The strings near a place, as a reader sees them."""
    shown = ", ".join(map(repr, strings[max(0, place - 2) : place + 4]))
    return f"{'..., ' if place > 2 else ''}{shown}{', ...' if place + 4 < len(strings) else ''}"


def _same(run: Run, case: Case) -> Problem | None:
    expected, got = [*run.expected(case)[0]], [*run.value(case)]
    if expected == got:
        return None
    equal = [one == other for one, other in zip(expected, got, strict=False)]
    place = equal.index(False) if False in equal else len(equal)
    return Problem(around(expected, place) or "no more", around(got, place) or "no more")


SAME = replace(EQUAL, explain="The slow reference gives another answer.", test=_same)
