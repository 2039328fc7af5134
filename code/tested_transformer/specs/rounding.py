"""How far rounding takes a right answer from the exact one, read off the plain formula itself.

Rounding moves what an operation reads and what it returns by at most half an eps each. So the formula is
computed in float64, every operation's floating point operands and results are moved by a known small
share of themselves, up or down at random, and what this does to the answer, scaled to the dtype in
question, is what rounding can do there. This is Monte Carlo arithmetic: Parker, "Monte Carlo
Arithmetic: exploiting randomness in floating-point arithmetic", UCLA CSD-970002, 1997. The roundings of a
long sum grow as the root of its length: Higham and Mary, "A new approach to probabilistic rounding error
analysis", SIAM J. Sci. Comput. 41(5), 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

STEP = 2.0**-20  # far above float64's own rounding, far below what bends a formula
POOL = 2**14  # directions drawn at once
DRAWS = (
    12  # runs with other directions: the roundings of one number that decides a row often cancel
)
LONG = 16  # terms from which the roundings of a sum have to be counted, see Higham and Mary 2019
OTHER_FORMULAS = 4  # a right formula may take several operations where the plain one takes one


_LEAST: list[torch.dtype] = []  # of the blocks `in_at_least` that a formula is in


@contextmanager
def in_at_least(dtype: torch.dtype) -> Iterator[None]:
    """Mark what a plain formula computes in this dtype or a wider one, whatever the answer's is."""
    _LEAST.append(dtype)
    try:
        yield
    finally:
        _LEAST.pop()


class Shaken(TorchDispatchMode):
    """Every operation reads and returns numbers that are off by a STEP of themselves.

    Where the formula is in a wider dtype than the one in question, the step is as much smaller.
    counts: whether whole numbers are counted by the formula, such as positions by a sum over a mask, and
    stay as they are.
    """

    def __init__(
        self, seed: int, dtype: torch.dtype = torch.float64, *, counts: bool = False
    ) -> None:
        super().__init__()
        self.seed, self.eps, self.counts = seed, torch.finfo(dtype).eps, counts
        self.pools, self.factors, self.used = 0, torch.empty(0), 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No formula is compiled: torch need not import its compiler (seconds) and ask it at every call."""
        return False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if is_view(function):  # no arithmetic
            return function(*args, **(kwargs or {}))
        if function is LAYER_NORM:
            return self._normalized(*args)
        if function in SOFTMAXES:
            return self._softmax(function, *args[:2])
        moved = {name: self.moved(given) for name, given in (kwargs or {}).items()}
        return self.moved(function(*self.moved(args), **moved), _roundings(function, args))

    def moved(self, given: Any, times: float = 1.0) -> Any:
        """A tensor, or those in a list or a tuple, each of its numbers a step larger or smaller."""
        if isinstance(given, list | tuple):
            return type(given)([self.moved(each, times) for each in given])
        if not isinstance(given, Tensor) or not given.is_floating_point():
            return given
        if _LEAST:
            times *= min(1.0, min(torch.finfo(dtype).eps for dtype in _LEAST) / self.eps)
        factors = self._factors(given.numel()).view(given.shape)
        factors = factors if times == 1.0 else 1 + times * (factors - 1)
        moved = given * (factors if given.dtype == torch.float64 else factors.to(given.dtype))
        return torch.where(given == given.round(), given, moved) if self.counts else moved

    def _normalized(self, x: Tensor, *others: Any) -> tuple[Tensor, ...]:
        """Layer norm in steps: its mean rounds, as no change of what the one operation reads shows."""
        _shape, weight, bias, _eps = others
        _, *statistics = LAYER_NORM(self.moved(x), *others)
        mean, rstd = self.moved(statistics)
        y = self.moved((self.moved(x) - mean) * rstd)
        y = y if weight is None else self.moved(y * self.moved(weight))
        return y if bias is None else self.moved(y + self.moved(bias)), mean, rstd

    def _softmax(self, function: Any, x: Tensor, dim: int) -> Tensor:
        """A softmax, or its logarithm, by x - log sum exp x, as kernels compute it in their backward pass.

        The logarithm of the sum is as large as the scores and rounds as they do: no row sums to 1 any more.
        """
        x = self.moved(x)
        logarithms = self.moved(x - self.moved(x.logsumexp(dim, keepdim=True)))
        if function is LOG_SOFTMAX:
            return logarithms
        nothing = x.isneginf().all(dim, keepdim=True)
        return self.moved(logarithms.exp()).masked_fill(nothing, 0.0)

    def _factors(self, count: int) -> Tensor:
        """The next random factors, of which many are drawn at once: that is much faster."""
        start, self.used = self.used, self.used + count
        if self.used > self.factors.numel():
            draw = _drawn if count <= POOL else _drawn.__wrapped__  # what is large is not kept
            self.factors = draw(self.seed, self.pools, max(POOL, count))
            self.pools += 1
            start, self.used = 0, count
        return self.factors[start : self.used]


@lru_cache(maxsize=256)  # of some 100 kB: the same seeds shake every formula
def _drawn(seed: int, pool: int, count: int) -> Tensor:
    """Factors 1 + STEP or 1 - STEP, those of a seed's first pool, its second ..."""
    random = torch.Generator().manual_seed(1000 * seed + pool)
    signs = 2 * torch.empty(count, dtype=torch.float64).bernoulli_(generator=random) - 1
    return 1 + STEP * signs


@cache
def is_view(function: Any) -> bool:
    """Whether an operation of torch computes nothing: it returns a view."""
    return any(out.alias_info for out in function._schema.returns)


LAYER_NORM = torch.ops.aten.native_layer_norm.default
LOG_SOFTMAX = torch.ops.aten._log_softmax.default
SOFTMAXES = (torch.ops.aten._softmax.default, torch.ops.aten._safe_softmax.default, LOG_SOFTMAX)
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "mv", "dot")


def _roundings(function: Any, args: tuple) -> float:
    """How far the roundings of a long sum of products lead: as the square root of their number."""
    if function._schema.name.removeprefix("aten::") not in PRODUCTS:
        return 1.0
    return max(1.0, (args[-1].shape[-min(2, args[-1].ndim)] / LONG) ** 0.5)


def rounding(
    formula: Callable[..., Mapping[str, np.ndarray]], dtype: torch.dtype, *, counts: bool = False
) -> dict[str, float]:
    """What rounding in a dtype can do to each of the arrays that a formula returns.

    Entries that are not finite count for nothing.
    """
    exact = formula()
    furthest = dict.fromkeys(exact, 0.0)
    for seed in range(DRAWS):
        shaker = Shaken(seed, dtype, counts=counts)
        with sdpa_kernel(SDPBackend.MATH), shaker:  # operation by operation
            shaken = formula()
        for name, array in exact.items():
            with np.errstate(invalid="ignore"):  # inf - inf
                far = np.abs(shaken[name] - array)
            far = float(np.max(far, initial=0.0, where=np.isfinite(array) & np.isfinite(far)))
            furthest[name] = max(furthest[name], far)
    unit = torch.finfo(dtype).eps / 2
    return {name: OTHER_FORMULAS * far * unit / STEP for name, far in furthest.items()}
