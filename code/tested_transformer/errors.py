"""One form for every complaint: the argument, what came, what was expected."""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
from torch import Tensor

__all__ = ["BackendError"]


class BackendError(ValueError):
    """A backend that was asked for by name can not serve the call."""


def complain(kind: type[Exception], argument: str, came: object, expected: str) -> Exception:
    """The exception to raise: `argument: expected ..., got ...`."""
    return kind(f"{argument}: expected {expected}, got {came}")


def shape_of(tensor: Tensor) -> str:
    """A shape as people write it: (2, 3, 4)."""
    return str(tuple(tensor.shape))


def need_tensor(argument: str, value: Any) -> None:
    """Raise TypeError unless `value` is a torch tensor."""
    if not isinstance(value, Tensor):
        raise complain(TypeError, argument, type(value).__name__, "a torch.Tensor")


def need_float_tensor(argument: str, value: Any) -> None:
    """Raise TypeError unless `value` is a floating point tensor."""
    need_tensor(argument, value)
    if not value.is_floating_point():
        raise complain(TypeError, argument, value.dtype, "a floating point dtype")


def need_bool_tensor(argument: str, value: Any) -> None:
    """Raise TypeError unless `value` is a boolean tensor: True means "may attend"."""
    need_tensor(argument, value)
    if value.dtype != torch.bool:
        raise complain(TypeError, argument, value.dtype, "torch.bool (True = may attend)")


def need_integer_tensor(argument: str, value: Any) -> None:
    """Raise TypeError unless `value` is a tensor of integers (booleans are not integers here)."""
    need_tensor(argument, value)
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise complain(TypeError, argument, value.dtype, "an integer dtype")


def need_rank(argument: str, value: Tensor, *ranks: int) -> None:
    """Raise ValueError unless `value` has one of the ranks."""
    if value.ndim not in ranks:
        wanted = " or ".join(map(str, ranks))
        raise complain(ValueError, argument, f"shape {shape_of(value)}", f"{wanted} axes")


def need_bool(argument: str, value: Any) -> None:
    """Raise TypeError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise complain(TypeError, argument, type(value).__name__, "True or False")


def need_count(argument: str, value: Any, least: int = 1) -> None:
    """Raise unless `value` is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise complain(TypeError, argument, type(value).__name__, "an int")
    if value < least:
        raise complain(ValueError, argument, value, f"at least {least}")


def need_number(argument: str, value: Any) -> None:
    """Raise unless `value` is a finite real number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise complain(TypeError, argument, type(value).__name__, "a number")
    if value != value or value in (float("inf"), float("-inf")):
        raise complain(ValueError, argument, value, "a finite number")


def need_positive(argument: str, value: Any) -> None:
    """Raise unless `value` is a finite number above zero."""
    need_number(argument, value)
    if value <= 0:
        raise complain(ValueError, argument, value, "a number above 0")


def need_probability(argument: str, value: Any) -> None:
    """Raise unless `value` is a number in [0, 1): dropping everything leaves nothing to rescale."""
    need_number(argument, value)
    if not 0 <= value < 1:
        raise complain(ValueError, argument, value, "a probability in [0, 1)")
