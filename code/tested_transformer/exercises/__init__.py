"""The exercises of the chapters. An exercise is a Spec with points; `check` judges the reader's try."""

from __future__ import annotations

import difflib
from typing import Any

from ..errors import complain
from ..specs.judge import Verdict, judge
from . import ch01, ch02, ch03, ch04, ch05, ch06, ch07, ch08, ch09

EXERCISES = {
    spec.name: spec
    for chapter in (ch01, ch02, ch03, ch04, ch05, ch06, ch07, ch08, ch09)
    for spec in chapter.EXERCISES
}


def check(name: str, function: Any) -> Verdict:
    """Judge a try at an exercise: right, not written yet, or wrong and why.

    Never raises for what the function does: an exception inside it is part of the verdict.

    Raises: TypeError if `name` is no string or `function` can not be called; ValueError if no
        exercise has that name.
    """
    if not isinstance(name, str):
        raise complain(TypeError, "name", type(name).__name__, "the name of an exercise")
    if name not in EXERCISES:
        near = difflib.get_close_matches(name, EXERCISES, n=3) or sorted(EXERCISES)
        raise complain(ValueError, "name", repr(name), f"an exercise, such as {', '.join(near)}")
    return judge(EXERCISES[name], function)
