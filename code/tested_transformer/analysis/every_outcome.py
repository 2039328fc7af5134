"""Enumerate all that a random computation can do, each outcome with its exact probability."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from typing import Any

from jaxtyping import Float
from torch import Tensor

from ..errors import argument_error
from ..shapes import checked

__all__ = ["every_outcome"]


class Replay:
    """A `choose` that first repeats given choices, then takes the first possible one each time.

    others: the choices that it could have made instead, each with all before it.
    """

    def __init__(self, given: tuple[int, ...]) -> None:
        self.given, self.taken, self.probability = given, (), 1.0
        self.others: list[tuple[int, ...]] = []

    def __call__(self, probabilities: Float[Tensor, " V"]) -> int:
        weights = intervals(probabilities)
        if len(self.taken) < len(self.given):
            index = self.given[len(self.taken)]
        else:
            index, *rest = (i for i, weight in enumerate(weights) if weight > 0)
            self.others += [(*self.taken, i) for i in rest]
        self.taken += (index,)
        self.probability *= weights[index]
        return index


def intervals(probabilities: Tensor) -> list[float]:
    """How often a uniform number falls to each index by the running sum; the rest to the last possible."""
    given = probabilities.double().tolist()
    last = max((i for i, one in enumerate(given) if one > 0), default=-1)
    if last < 0 or not sum(given) > 0:
        raise argument_error(
            ValueError, "probabilities", str(given), "a positive number among them"
        )
    edges = [min(edge, 1.0) for edge in accumulate(given)]
    edges[last:] = [1.0] * (len(given) - last)
    return [after - before for before, after in pairwise([0.0, *edges])]


@checked
def every_outcome(run: Callable[[Callable], Any]) -> Iterator[tuple[Any, float]]:
    """Call run(choose) once for each way its choices can go; yield its result and that probability.

    `run` takes all its randomness from `choose(probabilities)`, an index; with the same choices it
    does the same. The probabilities of all outcomes sum to 1.

    Raises: TypeError if run cannot be called; ValueError for probabilities that are NaN.
    Source: chapter 16.

    >>> import torch
    >>> coin = torch.tensor([0.25, 0.75])
    >>> [(result, p) for result, p in every_outcome(lambda choose: choose(coin) + choose(coin))]
    [(0, 0.0625), (1, 0.1875), (1, 0.1875), (2, 0.5625)]
    """
    pending: list[tuple[int, ...]] = [()]
    while pending:
        choose = Replay(pending.pop(0))
        result = run(choose)
        pending += choose.others
        yield result, choose.probability
