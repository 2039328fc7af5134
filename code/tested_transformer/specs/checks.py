"""What the checks of several families have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from .case import Case
from .compare import Problem, compare
from .draw import Draw
from .run import Run

Make = Callable[[np.random.Generator], dict[str, Any]]  # draws the arguments of a case

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


def any_batch(draw: Draw) -> tuple[int, ...]:
    """Batch axes: none, one, several, and axes of length 1."""
    return draw.one_of((), (2,), (1,), (2, 3), (1, 2, 2))


def any_dtype(draw: Draw) -> torch.dtype:
    """The two dtypes in which every formula is asked."""
    return draw.one_of(torch.float64, torch.float32)


def transposed(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same numbers, laid out in memory as views of a transposed tensor are."""
    return {
        name: np.asfortranarray(a) if isinstance(a, np.ndarray) else a
        for name, a in arguments.items()
    }


def scaled_up(make: Make, **factors: float) -> Make:
    """The arguments that `make` draws, some of them so many times as large."""

    def larger(rng: np.random.Generator) -> dict[str, Any]:
        drawn = make(rng)
        return drawn | {name: factor * drawn[name] for name, factor in factors.items()}

    return larger
