"""Judging a reader's try at an exercise, and keeping what passed."""

from __future__ import annotations

import difflib
from typing import Any

from ..errors import argument_error
from ..exercises import EXERCISES
from ..specs.judge import Verdict, judge
from .saved_parts import keep_passed

__all__ = ["check"]


def check(name: str, function: Any) -> Verdict:
    """Judge a try at an exercise: right, not written yet, or wrong and why.

    Never raises for what the function does: an exception inside it is part of the verdict. If a
    folder is open (`open_folder`) and the exercise is a part of the model, a function that passes is
    kept there, and a line is printed that says so, or why not.

    Raises: TypeError if `name` is no string or `function` cannot be called; ValueError if no
        exercise has that name.
    """
    if not isinstance(name, str):
        raise argument_error(TypeError, "name", type(name).__name__, "the name of an exercise")
    if name not in EXERCISES:
        near = difflib.get_close_matches(name, EXERCISES, n=3) or sorted(EXERCISES)
        raise argument_error(
            ValueError, "name", repr(name), f"an exercise, such as {', '.join(near)}"
        )
    verdict = judge(EXERCISES[name], function)
    if verdict.passed and (done := keep_passed(name, function)):
        print(done)
    return verdict
