"""Answers as arrays: where two of them differ, and how that is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ..errors import argument_error
from .tolerance import Tolerance

__all__ = ["Problem"]

# While shares() runs: the shares of tolerances that comparisons used, and whether of the whole ones.
_USED: list[float] | None = None
_EXACTLY = False
SURE = 0.49  # of the part of a tolerance that is known at once: nobody asks for the rest


@dataclass(frozen=True)
class Problem:
    """What a check found: what was expected and what came instead, in words or numbers."""

    expected: str
    got: str


class NoNumbers(TypeError):
    """An answer that is no tensor, no array and no number."""


def as_array(answer: Any) -> np.ndarray:
    """An answer as a NumPy array: tensors detached, floats widened to float64.

    Raises: NoNumbers for anything that is not a tensor, an array or a number.
    """
    if isinstance(answer, Tensor):
        answer = answer.detach().cpu()
        return (answer.double() if answer.is_floating_point() else answer).numpy()
    if isinstance(answer, int) and answer.bit_length() > 63:  # NumPy would make an object of it
        raise argument_error(NoNumbers, "the answer", "a number beyond int64", "one of 64 bits")
    if isinstance(answer, np.ndarray | np.generic | bool | int | float):
        return np.asarray(answer)
    raise argument_error(NoNumbers, "the answer", f"a {type(answer).__name__}", "a tensor")


def same_argument(a: Any, b: Any) -> bool:
    """Whether an argument is as it was: a tensor's shape, dtype, numbers and whether it asks for a
    gradient, a list's or a dict's entries."""
    if isinstance(a, list | dict | set):
        return a == b
    if not isinstance(a, Tensor):
        return True
    if a.requires_grad != b.requires_grad:
        return False
    return (
        a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
    )  # NaN stays NaN


def needed(expected: np.ndarray, got: np.ndarray, tolerance: float | Tolerance) -> float:
    """Of a tolerance the part that is known at once, where a difference uses less than half of it; else all of it."""
    if not isinstance(tolerance, Tolerance):
        return tolerance
    if not _EXACTLY and difference(expected, got, SURE * tolerance.least) is None:
        return tolerance.least
    return tolerance.whole


def difference(expected: np.ndarray, got: np.ndarray, tolerance: float) -> tuple[int, ...] | None:
    """The first place where two arrays differ by more than the tolerance; NaN equals NaN."""
    if expected.dtype.kind != "f":
        wrong = expected != got
    else:
        with np.errstate(invalid="ignore"):  # inf - inf
            far = ~(np.abs(expected - got) <= tolerance)
        wrong = far & ~(np.isnan(expected) & np.isnan(got)) & ~(expected == got)
    places = np.argwhere(wrong)
    return tuple(int(i) for i in places[0]) if len(places) else None


def agree(expected: np.ndarray, got: np.ndarray, tolerance: float | Tolerance) -> bool:
    """Whether two arrays of one shape, both of numbers or neither, nowhere differ by more than the tolerance."""
    kinds = {array.dtype.kind in "biufc" for array in (expected, got)}
    if expected.shape != got.shape or len(kinds) > 1:
        return False
    return difference(expected, got, needed(expected, got, tolerance)) is None


RELATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "the signs are flipped": lambda right: -right,
    "the rows stand in reverse order": lambda right: np.flip(right, -2),
    "the last axis is reversed": lambda right: np.flip(right, -1),
    "the last two axes are swapped": lambda right: np.swapaxes(right, -2, -1),
    "each row stands one row too low": lambda right: np.roll(right, 1, -2),
    "each row stands one row too high": lambda right: np.roll(right, -1, -2),
    "each column stands one too far to the right": lambda right: np.roll(right, 1, -1),
    "each column stands one too far to the left": lambda right: np.roll(right, -1, -1),
}


def relations(expected: np.ndarray, got: np.ndarray, tolerance: float) -> list[str]:
    """In which simple ways wrong numbers are like the right ones, the most telling first.

    Arrays with fewer than four numbers, or without two axes, say too little.
    """
    if expected.shape != got.shape or expected.ndim < 2 or expected.size < 4:
        return []
    if expected.dtype.kind != "f" or not np.isfinite([expected, got]).all():
        return []
    found = [] if got.any() else ["all of them are 0"]
    found += _wrong_rows(expected, got, tolerance)
    slack = 4 * tolerance
    for words, change in RELATIONS.items():
        other = change(expected)
        if other.shape == got.shape and difference(other, got, slack) is None:
            found.append(words)
    factor, shift = _factor(expected, got, None).item(), np.mean(got - expected).item()
    if got.any() and difference(factor * expected, got, slack * max(1, abs(factor))) is None:
        found += [f"every number is {factor:.3g} times the right one", "all have one factor"]
    elif difference(expected + shift, got, slack) is None:
        found += [f"every number is off by {shift:.3g}", "all are off by the same amount"]
    elif expected.shape[-1] > 2:
        factors = _factor(expected, got, -1)
        if difference(factors * expected, got, slack * max(1, np.abs(factors).max())) is None:
            found.append("each row is the right one times a factor of its own")
    return found


def _factor(expected: np.ndarray, got: np.ndarray, axis: int | None) -> np.ndarray:
    """By what the right numbers must be multiplied to come closest to the others."""
    squares = (expected * expected).sum(axis, keepdims=True)
    return (expected * got).sum(axis, keepdims=True) / np.where(squares > 0, squares, 1.0)


def _wrong_rows(expected: np.ndarray, got: np.ndarray, tolerance: float) -> list[str]:
    """Where along the second to last axis the wrong rows are, if they are in one place."""
    far = (np.abs(expected - got) > tolerance).any(-1)
    rows = far.reshape(-1, far.shape[-1]).any(0)
    last = len(rows) - 1
    places = {
        "only the first row is wrong": [0],
        "only the last row is wrong": [last],
        "only the first row is right": [*range(1, last + 1)],
        "only the last row is right": [*range(last)],
    }
    return [words for words, wrong in places.items() if last > 1 and [*rows.nonzero()[0]] == wrong]


def brief(value: Any) -> str:
    """A value on one line, rounded to four decimals and cut to about 100 characters."""
    if isinstance(value, np.ndarray):
        value = value.astype(np.float64) if value.dtype.kind == "f" else value
        text = np.array2string(value, precision=4, threshold=12, edgeitems=3, separator=", ")
        value = " ".join(text.split())
    text = f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)
    return text if len(text) <= 100 else text[:97] + "..."


def compare(
    expected: np.ndarray, got: np.ndarray, tolerance: float | Tolerance, what: str = ""
) -> Problem | None:
    """A Problem that shows the first difference, or None if the arrays agree.

    `what` says what the numbers are, where they are not the answer itself. The expected numbers must be
    right ones; for two answers of the same candidate there is `unchanged`.
    """
    if expected.shape != got.shape:
        return Problem(f"shape {expected.shape}", f"shape {got.shape}")
    tolerance = needed(expected, got, tolerance)
    _note_share(expected, got, tolerance)
    place = difference(expected, got, tolerance)
    if place is None:
        return None
    where = f" at {list(place)}" if place else ""
    what = f"{what} = " if what else ""
    wanted = f"{what}{brief(expected)}; {brief(expected[place])}{where}"
    came = f"{what}{brief(got)}; {brief(got[place])}{where}"
    if came == wanted:  # the difference is beyond the digits that are shown
        came += f", which is off by {abs(float(expected[place]) - float(got[place])):.1g}"
    return Problem(wanted, came)


def unchanged(
    before: np.ndarray,
    after: np.ndarray,
    tolerance: float | Tolerance,
    when: str,
    what: str = "the answer",
) -> Problem | None:
    """A Problem unless two answers of one candidate are the same numbers.

    `when` says what was done between them: "the keys are reversed". Neither answer is shown as the
    right one, and NaN is no answer that could stay the same.
    """
    if before.shape != after.shape:
        return Problem(
            f"{what} of the same shape when {when}", f"{before.shape} became {after.shape}"
        )
    if np.isnan(before).any() or np.isnan(after).any():
        return Problem(f"{what} in numbers", "NaN")
    tolerance = needed(before, after, tolerance)
    _note_share(before, after, tolerance)
    place = difference(before, after, tolerance)
    if place is None:
        return None
    where = f" at {list(place)}" if place else ""
    one, other = brief(before[place]), brief(after[place])
    if one == other:
        other += f", off by {abs(float(before[place]) - float(after[place])):.1g},"
    return Problem(f"{what} stays the same when {when}", f"{one} became {other}{where}")


@contextmanager
def shares(*, exactly: bool = False) -> Iterator[list[float]]:
    """Collect how much of its tolerance each comparison uses: below 1 it is passed.

    Below one half it may be the share of the part that is known at once, which is larger; `exactly` works
    every tolerance out.
    """
    global _USED, _EXACTLY
    outer, _USED, _EXACTLY = (_USED, _EXACTLY), [], exactly
    try:
        yield _USED
    finally:
        _USED, _EXACTLY = outer


def _note_share(expected: np.ndarray, got: np.ndarray, tolerance: float) -> None:
    if _USED is None or expected.dtype.kind != "f" or not expected.size:
        return
    with np.errstate(invalid="ignore"):  # inf - inf
        far = np.abs(expected - got)
    far = float(np.max(far, initial=0.0, where=np.isfinite(far)))
    if far > 0:
        _USED.append(far / tolerance if tolerance > 0 else np.inf)
