"""Judging a bug hunt: every implementation is served once to the test, in disguise."""

from __future__ import annotations

import random
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..bounds import Seed
from ..shapes import checked
from ..specs.mistakes import Mutant
from ..specs.surroundings import kept
from .tasks import Hunt

__all__ = ["HuntVerdict", "judge_hunt"]


@dataclass(frozen=True, eq=False)
class HuntVerdict:
    """What a bug hunt brought. Printed, it is what a student sees; as a condition, whether all is caught.

    caught, missed: mutants. refused: the first right implementation for which the test raised, and
    what it raised. returned: the test returned a value, which a test runner never looks at.
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
            return f"✗ {self.hunt.name}: no points yet.\n  A right implementation is rejected: {self.refused}"
        sign = "✓" if self else "·"
        lines = [f"{sign} {self.hunt.name}: {len(self.caught)} of {total} wrong implementations "
                 f"caught, every right one passes. {self.points:g} of {self.hunt.points} points."]  # fmt: skip
        if self.missed:
            lines.append(f"  one that your test missed: {self.missed[0].symptom}")
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


@checked
def judge_hunt(hunt: Hunt, test: Callable[[Any], Any], *, seed: Seed = 0) -> HuntVerdict:
    """Serve every implementation once to the test, in an order that the seed draws.

    What the test raises is its verdict on the implementation: nothing of it is raised here.

    Raises: TypeError or ValueError that name the argument, as for a test that cannot be called.
    """
    served: list[tuple[Any, Callable[..., Any]]] = [
        *hunt.right.items(),
        *((mutant, mutant.candidate) for mutant in hunt.mutants),
    ]
    random.Random(seed).shuffle(served)
    raised, returned = {}, False
    for who, implementation in served:
        try:
            with kept():  # what a test sets, the next one must not find
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
