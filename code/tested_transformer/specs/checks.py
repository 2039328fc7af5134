"""Checks and their helpers that several families share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from .case import Case
from .compare import Problem, compare, unchanged
from .run import Run
from .spec import Check

SIZES = (1, 2, 3, 5, 4, 8)  # of axes that are drawn
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


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


def transposed(array: np.ndarray) -> np.ndarray:
    """The same numbers, lying in memory with the last two axes the other way round."""
    return np.swapaxes(np.swapaxes(array, -1, -2).copy(), -1, -2) if array.ndim > 1 else array


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
    expected, far = run.expected(case)
    for training, mode in ((True, "in training, f"), (False, "in evaluation, f")):
        build = partial(run.spec.build, training=training)
        answer = Run(replace(run.spec, build=build), run.candidate).value(case)
        if problem := compare(expected, answer, far, mode):
            return problem
    return None


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
