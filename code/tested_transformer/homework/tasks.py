"""What an assignment is made of: code tasks, bug hunts and written answers, each with points."""

from __future__ import annotations

import random
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import argument_error
from ..reader.saved_parts import source_of
from ..specs.judge import Verdict, judge
from ..specs.mistakes import Mutant
from ..specs.spec import Spec
from .submissions.forbidden import not_allowed

__all__ = ["Assignment", "Hunt", "HuntVerdict", "Task", "Written", "judge_hunt"]

DIFFICULTIES = ("warm-up", "core", "challenge")


@dataclass(frozen=True, eq=False)
class Task:
    """A function to write, judged by a Spec; the Spec's name and points are the task's.

    forbidden: library functions that would do the whole work, by dotted names such as
    "F.scaled_dot_product_attention"; a submission that uses one gets no points for this task.
    """

    spec: Spec
    function: str
    minutes: int
    difficulty: str
    forbidden: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name by which a notebook asks for the check."""
        return self.spec.name

    @property
    def points(self) -> int:
        """All or none: a function is right or it is not."""
        return self.spec.points


@dataclass(frozen=True, eq=False)
class Hunt:
    """A bug hunt: a test to write, which must raise for wrong implementations and for no right one.

    right: implementations that must pass. mutants: those that must not. The points are shared out
    equally among the mutants; a test that refuses a right implementation gets none.
    """

    name: str
    function: str
    statement: str
    right: Mapping[str, Callable[..., Any]]
    mutants: tuple[Mutant, ...]
    points: int
    minutes: int
    difficulty: str
    chapter: int


@dataclass(frozen=True)
class Written:
    """An answer in words, or an experiment and what it shows; marked by a person.

    name: the cell's id in nbgrader. rubric: what earns the points, for whoever marks.
    """

    name: str
    kind: str  # "explanation" or "experiment"
    points: int
    minutes: int
    rubric: str


@dataclass(frozen=True, eq=False)
class Assignment:
    """One notebook: its name, title, week, chapters, and its parts in the notebook's order."""

    name: str
    title: str
    weeks: str
    chapters: tuple[int, ...]
    parts: tuple[Task | Hunt | Written, ...]

    @property
    def points(self) -> int:
        """What a perfect submission gets."""
        return sum(part.points for part in self.parts)

    @property
    def minutes(self) -> int:
        """How long it takes, by the minutes of its parts."""
        return sum(part.minutes for part in self.parts)

    @property
    def coded(self) -> tuple[Task | Hunt, ...]:
        """The parts that the grader marks."""
        return tuple(part for part in self.parts if not isinstance(part, Written))

    @property
    def written(self) -> tuple[Written, ...]:
        """The parts that a person marks."""
        return tuple(part for part in self.parts if isinstance(part, Written))


# ------------------------------------------------------------------------------------ judging a hunt


@dataclass(frozen=True, eq=False)
class HuntVerdict:
    """What a bug hunt brought. Printed, it is what a student sees; as a condition, whether all is caught.

    caught, missed: mutants. refused: the first right implementation for which the test raised, and
    what it raised. returned: the test gave a value back, which a test runner never looks at.
    """

    hunt: Hunt
    caught: tuple[Mutant, ...] = ()
    missed: tuple[Mutant, ...] = ()
    refused: str = ""
    returned: bool = False

    def __bool__(self) -> bool:
        return not self.refused and not self.missed

    @property
    def points(self) -> float:
        """The share of the hunt's points."""
        if self.refused:
            return 0.0
        return round(self.hunt.points * len(self.caught) / len(self.hunt.mutants), 2)

    def __repr__(self) -> str:
        total = len(self.hunt.mutants)
        if self.refused:
            return f"✗ {self.hunt.name}: no points yet.\n  A right implementation is refused: {self.refused}"
        sign = "✓" if self else "·"
        lines = [f"{sign} {self.hunt.name}: {len(self.caught)} of {total} wrong implementations "
                 f"caught, every right one passes. {self.points:g} of {self.hunt.points} points."]  # fmt: skip
        if self.missed:
            lines.append(f"  one that gets away: {self.missed[0].symptom}")
        if self.missed and self.returned:
            lines.append("  The test returns a value. Nobody looks at it: assert what must hold.")
        return "\n".join(lines)


class Disguised:
    """An implementation that shows a student's test nothing but what it answers."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Answer as the implementation does; what it raises shows its type alone."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they would show the implementation's lines
                return self._function(*arguments, **named)
        except Exception as error:
            raise _same_kind(error)("the implementation on trial raised this") from None


def _same_kind(error: Exception) -> type[Exception]:
    kinds = (ValueError, TypeError, IndexError, KeyError, ZeroDivisionError, NotImplementedError)
    return next((kind for kind in kinds if isinstance(error, kind)), RuntimeError)


def judge_hunt(hunt: Hunt, test: Callable[[Any], Any], *, seed: int = 0) -> HuntVerdict:
    """Serve every implementation once to the test, in an order that the seed draws.

    What the test raises is its verdict on the implementation: nothing of it is raised here.

    Raises: TypeError if the test can not be called.
    """
    if not callable(test):
        raise argument_error(TypeError, "test", type(test).__name__, "a function")
    served: list[tuple[Any, Callable[..., Any]]] = [
        *hunt.right.items(),
        *((mutant, mutant.candidate) for mutant in hunt.mutants),
    ]
    random.Random(seed).shuffle(served)
    raised, returned = {}, False
    for who, implementation in served:
        try:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(0)
                returned |= test(Disguised(implementation)) is not None
        except Exception as error:
            raised[who] = _in_words(error)
    return HuntVerdict(
        hunt,
        caught=tuple(mutant for mutant in hunt.mutants if mutant in raised),
        missed=tuple(mutant for mutant in hunt.mutants if mutant not in raised),
        refused=next((raised[name] for name in hunt.right if name in raised), ""),
        returned=returned,
    )


def _in_words(error: Exception) -> str:
    """What a test raised; an assertion without words says where it stands."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, AssertionError) and not str(error):
        line = traceback.extract_tb(error.__traceback__)[-1].line
        text = f"AssertionError: at `{line}`" if line else "AssertionError"
    return " ".join(text.split())[:160]


# ------------------------------------------------------------------------------- check, for students


def check(name: str, function: Any) -> Verdict | HuntVerdict | NotAllowed:
    """Judge a try at a task or a bug hunt of the homework, as the grader will, but with its own cases.

    Never raises for what the function does.

    Raises: TypeError if `name` is no string or `function` can not be called; ValueError if no part of
        the homework has that name.
    """
    from .assignments import part

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
        said = f"✗ {self.name}: `{self.used}` is not allowed here, and the grader gives no points."
        return f"{said} Without that:\n{self.verdict!r}"


def _code_of(name: str, function: Any) -> str:
    """The source of a function and of all that it uses; "" if it can not be found."""
    try:
        return source_of(name, function)
    except Exception:  # a lambda, a class from elsewhere: the grader will look at the notebook
        return ""
