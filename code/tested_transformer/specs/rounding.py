"""How far rounding takes a right answer from the exact one, read off the plain formula itself.

Rounding moves what an operation reads and what it returns by at most half an eps each. So the formula is
computed in float64, every operation's floating point operands and results are moved by a known small
share of themselves, up or down at random, and what this does to the answer, scaled to the dtype in
question, is what rounding can do there. This is Monte Carlo arithmetic: Parker, "Monte Carlo
Arithmetic: exploiting randomness in floating-point arithmetic", UCLA CSD-970002, 1997.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

STEP = 2.0**-20  # far above float64's own rounding, far below what bends a formula
POOL = 2**14  # directions drawn at once
DRAWS = 3  # runs with other directions; each array has many entries besides
OTHER_FORMULAS = 4  # a right formula may take several operations where the plain one takes one


class Shaken(TorchDispatchMode):
    """Every operation reads and returns numbers that are off by a STEP of themselves."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = torch.Generator().manual_seed(seed)
        self.factors, self.used = torch.empty(0), 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if _is_view(function):
            return function(*args, **(kwargs or {}))
        moved = {name: self.moved(given) for name, given in (kwargs or {}).items()}
        return self.moved(function(*self.moved(args), **moved))

    def moved(self, given: Any) -> Any:
        """A tensor, or those in a list or a tuple, each of its numbers a STEP larger or smaller."""
        if isinstance(given, list | tuple):
            return type(given)(map(self.moved, given))
        if not isinstance(given, Tensor) or not given.is_floating_point():
            return given
        start, self.used = self.used, self.used + given.numel()
        if self.used > len(self.factors):  # drawn many at once, which is much faster
            signs = torch.empty(max(POOL, given.numel()), dtype=torch.float64)
            self.factors = 1 + STEP * (2 * signs.bernoulli_(generator=self.random) - 1)
            start, self.used = 0, given.numel()
        return given * self.factors[start : self.used].view(given.shape).to(given.dtype)


@cache
def _is_view(function: Any) -> bool:
    """Whether an operation does no arithmetic."""
    return any(out.alias_info for out in function._schema.returns)


def rounding(
    formula: Callable[..., Mapping[str, np.ndarray]], dtype: torch.dtype
) -> dict[str, float]:
    """What rounding in a dtype can do to each of the arrays that a formula returns.

    Entries that are not finite count for nothing.
    """
    exact = formula()
    furthest = dict.fromkeys(exact, 0.0)
    for seed in range(DRAWS):
        with Shaken(seed):
            shaken = formula()
        for name, array in exact.items():
            with np.errstate(invalid="ignore"):  # inf - inf
                far = np.abs(shaken[name] - array)
            far = float(np.max(far, initial=0.0, where=np.isfinite(array) & np.isfinite(far)))
            furthest[name] = max(furthest[name], far)
    unit = torch.finfo(dtype).eps / 2
    return {name: OTHER_FORMULAS * far * unit / STEP for name, far in furthest.items()}
