"""What the checks of several families have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from .case import Case
from .compare import Problem, compare, unchanged
from .draw import Draw
from .run import Run
from .spec import Check

Make = Callable[[np.random.Generator], dict[str, Any]]  # draws the arguments of a case

SIZES = (1, 2, 3, 5, 4, 8)  # of axes that are drawn
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

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


def changed(case: Case, **changes: Any) -> Case:
    """The case with some arguments replaced; None takes one away."""
    arguments = {n: a for n, a in {**case.arguments, **changes}.items() if a is not None}
    return replace(case, arguments=arguments)


def tolerance(run: Run, case: Case, answer: np.ndarray, **changes: Any) -> float:
    """That of the case with some arguments replaced, of which `answer` is the size."""
    return run.spec.tolerance(changed(case, **changes), answer)


def largest(array: np.ndarray) -> float:
    """The largest of the finite numbers of an array, by size."""
    return float(np.max(np.abs(array), initial=0.0, where=np.isfinite(array)))


def is_module_class(candidate: Any) -> bool:
    """A class of modules: it may have a mode, and weights of its own making."""
    return isinstance(candidate, type) and issubclass(candidate, nn.Module)


def same_after(
    what: str, others: Callable[[Case], dict[str, Any]], when: Callable[[Case], bool]
) -> Check:
    """A candidate that is built once answers the same after a call with other arguments."""

    def test(run: Run, case: Case) -> Problem | None:
        after = run.after_another_call(case, **others(case))
        return unchanged(run.value(case), after, 2 * run.expected(case)[1], f"{what} came before")

    return Check(
        f"{what} leaves nothing behind",
        "The same call gives another answer, or none, after one of another size: something was kept.",
        test,
        when=when,
    )


def _either_mode(run: Run, case: Case) -> Problem | None:
    if not is_module_class(run.candidate):
        return None
    training, evaluation = (
        Run(replace(run.spec, build=partial(run.spec.build, training=mode)), run.candidate)
        for mode in (True, False)
    )
    before, after = evaluation.value(case), training.value(case)
    return unchanged(before, after, 2 * run.expected(case)[1], "module.train() is called")


def either_mode(when: Callable[[Case], bool]) -> Check:
    """A module class answers the same in training and in evaluation.

    The Spec's `build` takes `training`, the mode of the module that it makes.
    """
    return Check(
        "training and evaluation agree",
        "Without dropout module.train() and module.eval() change nothing: no statistics are kept, "
        "and nothing is dropped.",
        _either_mode,
        when=when,
    )
