"""One form for every complaint: the argument, what came, what was expected."""

from __future__ import annotations

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
