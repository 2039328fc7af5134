"""How large a step to take, step by step: warm up, then cool down."""

from __future__ import annotations

import math
from typing import Annotated

from ..bounds import AtLeast, AtMost, PositiveFloat, PositiveInt
from ..shapes import checked

__all__ = ["one_cycle_rate", "paper_rate"]


@checked
def paper_rate(
    step: PositiveInt,
    *,
    d_model: PositiveInt,
    warmup: PositiveInt = 4000,
    factor: PositiveFloat = 1.0,
) -> float:
    """The learning rate of the paper: it rises in a line for `warmup` steps, then falls as 1/sqrt(step).

    factor x d_model^-0.5 x min(step^-0.5, step x warmup^-1.5); the first step is 1.

    Raises: TypeError or ValueError that name the argument.
    Source: Vaswani et al. 2017, equation 3.

    >>> round(paper_rate(4000, d_model=512), 7)
    0.0006988
    """
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


@checked
def one_cycle_rate(
    step: Annotated[int, AtLeast(1), AtMost("total")],
    *,
    total: PositiveInt,
    peak: PositiveFloat,
    warmup: Annotated[float, AtLeast(0), AtMost(1)] = 0.3,
    start_ratio: PositiveFloat = 25.0,
    end_ratio: PositiveFloat = 1e4,
) -> float:
    """A learning rate that rises to its peak and falls to nearly nothing, both along a cosine.

    It starts at peak / start_ratio, is at its peak after the share `warmup` of all steps, and ends at
    the start divided by end_ratio; the first step is 1, the last is `total`.

    Raises: TypeError or ValueError that name the argument.
    Source: Smith and Topin 2019; the cosine as in torch's OneCycleLR.

    >>> [round(one_cycle_rate(step, total=10, peak=1.0), 3) for step in (1, 3, 10)]
    [0.04, 1.0, 0.0]
    """
    start, top, last = peak / start_ratio, warmup * total - 1, total - 1
    at = step - 1
    if at <= top:
        return _cosine(start, peak, at / top if top > 0 else 1.0)
    return _cosine(peak, start / end_ratio, (at - top) / (last - top))


def _cosine(first: float, last: float, share: float) -> float:
    return last + (first - last) / 2 * (1 + math.cos(math.pi * share))
