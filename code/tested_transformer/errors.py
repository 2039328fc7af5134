"""One form for every complaint: the argument, what came, what was expected."""

from __future__ import annotations

from numbers import Real
from typing import Any

from torch import Tensor

__all__ = ["BackendError"]


class BackendError(ValueError):
    """A backend that was asked for by name cannot serve the call."""


def argument_error(kind: type[Exception], argument: str, came: object, expected: str) -> Exception:
    """The exception to raise: `argument: expected ..., got ...`."""
    return kind(f"{argument}: expected {expected}, got {came}")


def shape_of(tensor: Tensor) -> str:
    """A shape as people write it: (2, 3, 4)."""
    return str(tuple(tensor.shape))


def type_of(value: Any) -> str:
    """The name of a value's type; NumPy's bool is another than Python's."""
    cls = type(value)
    return f"{'numpy.' if cls.__name__ == 'bool' and cls is not bool else ''}{cls.__name__}"


def check_tensor(argument: str, value: Any) -> None:
    """Raise TypeError unless `value` is a torch tensor."""
    if not isinstance(value, Tensor):
        raise argument_error(TypeError, argument, type(value).__name__, "a torch.Tensor")


def check_float_tensor(argument: str, value: Any) -> None:
    """Raise TypeError unless `value` is a floating point tensor."""
    check_tensor(argument, value)
    if not value.is_floating_point():
        raise argument_error(TypeError, argument, value.dtype, "a floating point dtype")


def check_rank(argument: str, value: Tensor, *ranks: int) -> None:
    """Raise ValueError unless `value` has one of the ranks."""
    if value.ndim not in ranks:
        wanted = " or ".join(map(str, ranks))
        raise argument_error(ValueError, argument, f"shape {shape_of(value)}", f"{wanted} axes")


def check_count(argument: str, value: Any, least: int = 1) -> None:
    """Raise unless `value` is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise argument_error(TypeError, argument, type(value).__name__, "an int")
    if value < least:
        raise argument_error(ValueError, argument, value, f"at least {least}")


def check_number(argument: str, value: Any) -> None:
    """Raise unless `value` is a finite real number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise argument_error(TypeError, argument, type(value).__name__, "a number")
    if value != value or value in (float("inf"), float("-inf")):
        raise argument_error(ValueError, argument, value, "a finite number")


def check_positive(argument: str, value: Any) -> None:
    """Raise unless `value` is a finite number above zero."""
    check_number(argument, value)
    if value <= 0:
        raise argument_error(ValueError, argument, value, "a number above 0")
