"""One call of a candidate: its arguments, in the dtypes that the candidate and the reference get."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .compare import brief

WIDEST = np.longdouble  # no wider than float64 on Apple silicon and on Windows

__all__ = ["Case"]


def no_simpler() -> Iterable[Case]:
    """What stands in a case that was written by hand: it has no simpler ones."""
    return ()


@dataclass(frozen=True, eq=False)
class Case:
    """One call: a label for people, the arguments as NumPy arrays or plain values, and a dtype.

    Floating point arrays reach the candidate as tensors of `dtype`; the reference gets the same
    rounded numbers in a wider one.
    """

    label: str
    arguments: Mapping[str, Any]
    dtype: torch.dtype = torch.float64
    simpler: Callable[[], Iterable[Case]] = no_simpler  # for one that was drawn: see draw.py
    _changed: dict[bytes, Case] = field(default_factory=dict, init=False, repr=False)
    _known: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def changed(self, **changes: Any) -> Case:
        """The case with some arguments replaced, or without those that are None.

        The same object for the same changes, so that what is expected of it is computed once for all
        candidates.
        """
        key = pickle.dumps(changes)
        if key not in self._changed:
            own = pickle.loads(key)  # which nobody writes into
            arguments = {n: a for n, a in {**self.arguments, **own}.items() if a is not None}
            self._changed[key] = replace(self, arguments=arguments, simpler=no_simpler)
        return self._changed[key]

    def remembered(self, key: Any, find: Callable[[], Any]) -> Any:
        """What `find` returns, found once for a key: what is expected of a case is slow to compute."""
        if key not in self._known:
            self._known[key] = find()
        return self._known[key]

    def tensors(self, **changes: Any) -> dict[str, Any]:
        """Fresh tensors for the candidate, with some arguments replaced."""
        return {name: self._tensor(a) for name, a in {**self.arguments, **changes}.items()}

    def arrays(self, **changes: Any) -> dict[str, Any]:
        """The same numbers for the reference: float64, or longdouble where float64 is judged."""
        wide = WIDEST if self.dtype == torch.float64 else np.float64
        return {name: _widen(a, wide) for name, a in self.tensors(**changes).items()}

    def wide_tensors(self) -> dict[str, Any]:
        """The candidate's numbers in float64."""
        given = self.tensors()
        return {
            name: a.double() if isinstance(a, Tensor) and a.is_floating_point() else a
            for name, a in given.items()
        }

    @property
    def is_empty(self) -> bool:
        """Whether an array has no numbers: no keys, no rows."""
        return any(isinstance(a, np.ndarray) and not a.size for a in self.arguments.values())

    def rounding(self, terms: int) -> float:
        """What rounding can do to a sum of `terms` numbers below 1."""
        return 2 * (terms + 2) * torch.finfo(self.dtype).eps

    def _tensor(self, argument: Any) -> Any:
        if not isinstance(argument, np.ndarray):
            return copy.deepcopy(argument) if isinstance(argument, list | dict | set) else argument
        tensor = torch.from_numpy(argument.copy(order="K"))  # laid out in memory as it is
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor


def _widen(argument: Any, dtype: Any) -> Any:
    if not isinstance(argument, Tensor):
        return argument
    if argument.is_floating_point():
        return argument.double().numpy().astype(dtype)
    return argument.numpy()


def describe(case: Case) -> str:
    """A case in words: its label, dtype and the shapes or values of its arguments."""
    parts = []
    for name, argument in case.arguments.items():
        if argument is None:
            continue
        small = not isinstance(argument, np.ndarray) or argument.size <= 4
        parts.append(f"{name} {brief(argument)}" if small else f"{name} {argument.shape}")
    return f"{case.label} ({str(case.dtype).removeprefix('torch.')}): " + ", ".join(parts)
