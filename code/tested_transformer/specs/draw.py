"""Cases by chance: combinations of options are drawn, not listed, and a failing one is made smaller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

import numpy as np

from .case import Case

Option = TypeVar("Option")


class Draw:
    """Choices among options that stand in order, the simplest first, and random numbers.

    The choices are remembered: `Draw(seed, choices)` makes the same ones again.
    """

    def __init__(self, seed: int, choices: tuple[int, ...] | None = None) -> None:
        self.given = choices
        self.numbers = np.random.default_rng(seed)  # for the arrays of the case
        self.chance = np.random.default_rng((seed, 1))
        self.choices: tuple[int, ...] = ()

    def one_of(self, *options: Option) -> Option:
        """One of the options; name the simplest first."""
        place = len(self.choices)
        if self.given is None:
            choice = int(self.chance.integers(len(options)))
        else:  # fewer options than before, or more choices: as simple as can be
            choice = self.given[place] if place < len(self.given) else 0
            choice = min(choice, len(options) - 1)
        self.choices += (choice,)
        return options[choice]

    def maybe(self, make: Callable[[], Any]) -> Any:
        """None, or what `make` makes."""
        return make() if self.one_of(False, True) else None


def attempts(limit: int = 10_000) -> Iterator[int]:
    """Count the draws of a case that is drawn until it fits.

    Raises: RuntimeError after so many; then nothing may ever fit, and a loop without an end would hang.
    """
    yield from range(limit)
    raise RuntimeError(f"expected a case that fits among {limit} draws, got none")


def drawn_case(
    make: Callable[[Draw], Case], seed: int, choices: tuple[int, ...] | None = None
) -> Case:
    """The case that `make` makes of the draws of a seed, or of these choices."""

    @cache  # every candidate that fails on it asks for the same simpler ones
    def with_choices(choices: tuple[int, ...] | None) -> Case:
        draw = Draw(seed, choices)
        return replace(
            make(draw), simpler=lambda: (with_choices(c) for c in _simpler(draw.choices))
        )

    return with_choices(choices)


def _simpler(choices: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The choices with one of them simpler, the simplest first."""
    for place, choice in enumerate(choices):
        for lower in range(choice):
            yield (*choices[:place], lower, *choices[place + 1 :])


def smallest(case: Case, fails: Callable[[Case], bool]) -> Case:
    """The case with every choice as simple as it can be while it still fails."""
    simpler = next(filter(fails, case.simpler()), None)
    return case if simpler is None else smallest(simpler, fails)
