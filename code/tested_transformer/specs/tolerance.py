"""A tolerance of which the larger part is worked out only when an answer comes near the smaller one.

What rounding does to a formula is found by running it several times (see rounding.py), and most right
answers are off by far less than the part that is known without that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

__all__ = ["Tolerance", "grown"]


class Tolerance:
    """A number that is at least `least`, and is worked out by `whole` when it is asked for.

    Sums and multiples of tolerances are such numbers too; whatever else is done with one works it out.
    """

    __array_ufunc__ = None  # NumPy leaves to the methods below what it is asked to do with one

    def __init__(self, least: float, whole: Callable[[], float]) -> None:
        self.least, self._whole = least, whole

    @cached_property
    def whole(self) -> float:
        """The number itself."""
        return float(self._whole())

    def __float__(self) -> float:
        return self.whole

    def __repr__(self) -> str:
        return repr(self.whole)

    def __add__(self, other: Any) -> Any:
        if isinstance(other, Tolerance):
            return Tolerance(self.least + other.least, lambda: self.whole + other.whole)
        if isinstance(other, float | int) and other >= 0:
            return Tolerance(self.least + other, lambda: self.whole + other)
        return self.whole + other

    def __mul__(self, factor: Any) -> Any:
        if isinstance(factor, float | int) and factor >= 0:
            return Tolerance(factor * self.least, lambda: factor * self.whole)
        return self.whole * factor

    __radd__, __rmul__ = __add__, __mul__

    def __sub__(self, other: Any) -> Any:
        return self.whole - _number(other)

    def __rsub__(self, other: Any) -> Any:
        return other - self.whole

    def __truediv__(self, other: Any) -> Any:
        return self.whole / _number(other)

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.whole

    def __lt__(self, other: Any) -> Any:
        return not self._surely(other) and self.whole < _number(other)

    def __le__(self, other: Any) -> Any:
        return self.whole <= _number(other)

    def __gt__(self, other: Any) -> Any:
        return self.whole > _number(other)

    def __ge__(self, other: Any) -> Any:
        return self._surely(other) or self.whole >= _number(other)

    def _surely(self, other: Any) -> bool:
        """Whether a number is within the part that is known."""
        return isinstance(other, float | int) and other <= self.least

    def __neg__(self) -> float:
        return -self.whole

    def __pow__(self, power: Any) -> Any:
        return self.whole**power

    def __format__(self, form: str) -> str:
        return format(self.whole, form)

    def __eq__(self, other: object) -> Any:
        return self.whole == _number(other)

    def __bool__(self) -> bool:
        return bool(self.whole)

    __hash__ = None


def grown(tolerance: float | Tolerance, function: Callable[[float], float]) -> float | Tolerance:
    """What a function that gives more for more makes of a tolerance."""
    if not isinstance(tolerance, Tolerance):
        return function(tolerance)
    return Tolerance(function(tolerance.least), lambda: function(tolerance.whole))


def _number(value: Any) -> Any:
    return value.whole if isinstance(value, Tolerance) else value
