"""Tests of checks that several assignments share; what they allow is what rounding does to the answer."""

from __future__ import annotations

from typing import Any

import torch

from ..specs.compare import Problem, compare, unchanged
from ..specs.spec import Case, Run

__all__ = ["of_exponents", "right_with", "same_with", "sums_of_rows"]


def of_exponents(case: Case, largest: float) -> float:
    """How far rounding takes weights exp(s - logsumexp(s)) of scores up to so large a number.

    Where torch.softmax subtracts the largest score first, this rounds both terms by half an eps of them.
    """
    return torch.finfo(case.dtype).eps * max(1.0, float(largest))


def sums_of_rows(run: Run, case: Case) -> Problem | None:
    """The sums of the answer's rows are those of the right ones."""
    expected, tolerance = run.expected(case)
    sums = run.value(case).sum(-1)
    return compare(expected.sum(-1), sums, expected.shape[-1] * tolerance, "sums of the rows")


def right_with(run: Run, case: Case, what: str, **changes: Any) -> Problem | None:
    """The answer is right with some arguments replaced."""
    expected, tolerance = run.expected(case, **changes)
    return compare(expected, run.value(case, **changes), tolerance, what)


def same_with(
    run: Run, case: Case, when: str, what: str = "the answer", **changes: Any
) -> Problem | None:
    """The answer is the same with some arguments replaced, of which it must not depend."""
    tolerance = 2 * run.expected(case)[1]  # for either
    return unchanged(run.value(case), run.value(case, **changes), tolerance, when, what)
