"""How large a step to take, step by step: warm up, then cool down."""

from __future__ import annotations

import math

from ..errors import argument_error, check_count, check_positive

__all__ = ["one_cycle_rate", "paper_rate"]


def paper_rate(step: int, *, d_model: int, warmup: int = 4000, factor: float = 1.0) -> float:
    """The learning rate of the paper: it rises in a line for `warmup` steps, then falls as 1/sqrt(step).

    factor x d_model^-0.5 x min(step^-0.5, step x warmup^-1.5); the first step is 1.

    Raises: TypeError or ValueError that name the argument.
    Source: Vaswani et al. 2017, equation 3.

    >>> round(paper_rate(4000, d_model=512), 7)
    0.0006988
    """
    check_count("step", step)
    check_count("d_model", d_model)
    check_count("warmup", warmup)
    check_positive("factor", factor)
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def one_cycle_rate(
    step: int,
    *,
    total: int,
    peak: float,
    warmup: float = 0.3,
    start_ratio: float = 25.0,
    end_ratio: float = 1e4,
) -> float:
    """A learning rate that rises to its peak and falls to nearly nothing, both along a cosine.

    It starts at peak / start_ratio, is at its peak after the share `warmup` of all steps, and ends at
    the start divided by end_ratio; the first step is 1, the last is `total`.

    Raises: TypeError or ValueError that name the argument.
    Source: Smith and Topin 2019; the cosine as in torch's OneCycleLR.

    >>> [round(one_cycle_rate(step, total=10, peak=1.0), 3) for step in (1, 3, 10)]
    [0.04, 1.0, 0.0]
    """
    check_count("total", total)
    check_count("step", step)
    if step > total:
        raise argument_error(ValueError, "step", step, f"at most total = {total}")
    for name, number in (("peak", peak), ("start_ratio", start_ratio), ("end_ratio", end_ratio)):
        check_positive(name, number)
    if not 0 <= warmup <= 1:
        raise argument_error(ValueError, "warmup", warmup, "a share of the steps, from 0 to 1")
    start, top, last = peak / start_ratio, warmup * total - 1, total - 1
    at = step - 1
    if at <= top:
        return _cosine(start, peak, at / top if top > 0 else 1.0)
    return _cosine(peak, start / end_ratio, (at - top) / (last - top))


def _cosine(first: float, last: float, share: float) -> float:
    return last + (first - last) / 2 * (1 + math.cos(math.pi * share))
