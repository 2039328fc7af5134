"""`check`, by which a homework's notebook judges the function that its reader has just written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..reader.saved_parts import source_of
from ..specs.judge import Verdict, judge
from .assignments import part
from .bug_hunts import HuntVerdict, judge_hunt
from .submissions.forbidden import not_allowed
from .tasks import Hunt


def check(name: str, function: Any) -> Verdict | HuntVerdict | NotAllowed:
    """Judge a try at a task or a bug hunt of the homework, as the grader will, but with its own cases.

    Never raises for what the function does.

    Raises: TypeError if `name` is no string or `function` cannot be called; ValueError if no part of
        the homework has that name.
    """
    asked = part(name)
    verdict = (
        judge_hunt(asked, function) if isinstance(asked, Hunt) else judge(asked.spec, function)
    )
    used = not_allowed(_code_of(name, function), getattr(asked, "forbidden", ()))
    return NotAllowed(verdict, name, used) if used else verdict


@dataclass(frozen=True, eq=False)
class NotAllowed:
    """A verdict that counts for nothing: the function uses what the grader will not let it use."""

    verdict: Verdict | HuntVerdict
    name: str
    used: str

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        sentence = (
            f"✗ {self.name}: `{self.used}` is not allowed here, and the grader gives no points."
        )
        return f"{sentence} Without that:\n{self.verdict!r}"


def _code_of(name: str, function: Any) -> str:
    """The source of a function and of all that it uses; "" if it cannot be found."""
    try:
        return source_of(name, function)
    except Exception:  # a lambda, a class from elsewhere: the grader will look at the notebook
        return ""
