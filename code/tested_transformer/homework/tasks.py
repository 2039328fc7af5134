"""What an assignment is made of: code tasks, bug hunts and written answers, each with points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..specs.mistakes import Mutant
from ..specs.spec import Spec

__all__ = ["Assignment", "Hunt", "Task", "Written"]

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
