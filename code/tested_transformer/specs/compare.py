"""Answers as arrays: where two of them differ, and how that is said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ..errors import argument_error

__all__ = ["Problem"]


@dataclass(frozen=True)
class Problem:
    """What a check found: what was expected and what came instead, in words or numbers."""

    expected: str
    got: str


def as_array(answer: Any) -> np.ndarray:
    """An answer as a NumPy array: tensors detached, floats widened to float64.

    Raises: TypeError for anything that is not a tensor, an array or a number.
    """
    if isinstance(answer, Tensor):
        answer = answer.detach().cpu()
        return (answer.double() if answer.is_floating_point() else answer).numpy()
    if isinstance(answer, np.ndarray | np.generic | bool | int | float):
        return np.asarray(answer)
    raise argument_error(TypeError, "the answer", f"a {type(answer).__name__}", "a tensor")


def same_tensor(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor):
        return True
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())  # NaN stays NaN


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


def brief(value: Any) -> str:
    """A value on one line, rounded to four decimals and cut to about 100 characters."""
    if isinstance(value, np.ndarray):
        value = value.astype(np.float64) if value.dtype.kind == "f" else value
        text = np.array2string(value, precision=4, threshold=12, edgeitems=3, separator=", ")
        value = " ".join(text.split())
    text = f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)
    return text if len(text) <= 100 else text[:97] + "..."


def compare(
    expected: np.ndarray, got: np.ndarray, tolerance: float, what: str = "", like: str = ""
) -> Problem | None:
    """A Problem that shows the first difference, or None if the arrays agree.

    `what` says what the numbers are, where they are not the answer itself. `like` says what was changed
    where the expected numbers are the candidate's own, of a changed call.
    """
    as_there = f", as {like}" if like else ""
    if expected.shape != got.shape:
        return Problem(f"shape {expected.shape}{as_there}", f"shape {got.shape}")
    place = difference(expected, got, tolerance)
    if place is None:
        return None
    where = f" at {list(place)}" if place else ""
    what = f"{what} = " if what else ""
    wanted, came = (
        f"{what}{brief(expected)}; {brief(expected[place])}{where}",
        f"{what}{brief(got)}; ",
    )
    came += f"{brief(got[place])}{where}"
    if came == wanted:  # the difference is beyond the digits that are shown
        came += f", which is off by {abs(float(expected[place]) - float(got[place])):.1g}"
    return Problem(wanted + as_there, came)
