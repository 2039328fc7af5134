"""The Spec of a cache of the last keys: token by token, the outputs are those of windowed attention."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import reference
from ...functional.attention import attention
from ..attention.spec import textbook
from ..checks import any_dtype
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..run import Run
from ..spec import Case, Check, Spec
from . import mutants

NAMES = ("query", "key", "value", "window")


def feed(candidate: Any, query, key, value, window, attend=attention) -> Tensor | None:
    """Give a new object one token after the other; attend to what it returns, without a mask."""
    cache, outputs = candidate(window), []
    for query_now, *new in zip(
        *(each.split(1, dim=2) for each in (query, key, value)), strict=True
    ):
        kept = cache.append(*new)
        if kept is None:  # an exercise not written yet
            return None
        outputs.append(attend(query_now, *kept))
    return torch.cat(outputs, dim=2)


def _reference(query, key, value, window) -> np.ndarray:
    return reference.attention(query, key, value, causal=True, window=window)


def _baseline(query, key, value, window) -> Tensor:
    """The right ring; attention in the dtype of the case."""
    return feed(mutants.Ring, query, key, value, window, attend=_shared)


def _shared(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    repeats = query.shape[1] // key.shape[1]
    return textbook(query, *(each.repeat_interleave(repeats, 1) for each in (key, value)))


def _arguments(rng: np.random.Generator, batch, heads, groups, length, d, dv, window) -> dict:
    shapes = (heads, d), (groups, d), (groups, dv)
    made = [rng.normal(size=(batch, n, length, width)) for n, width in shapes]
    return dict(zip(NAMES, (*made, window), strict=True))


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64) -> Case:
        return Case(label, _arguments(rng, *sizes), dtype)

    return [
        case("three tokens, window 2", 1, 1, 1, 3, 2, 2, 2),
        case("seven tokens, window 3", 2, 3, 3, 7, 4, 5, 3),
        case("two rounds and more", 1, 2, 2, 11, 3, 2, 4),
        case("as long as the window", 2, 2, 2, 4, 3, 5, 4),
        case("shorter than the window", 1, 3, 3, 3, 4, 2, 6),
        case("each token alone", 2, 2, 2, 4, 5, 3, 1),
        case("fewer KV heads", 2, 4, 2, 8, 3, 5, 3),
        case("float32", 2, 3, 3, 7, 4, 5, 3, dtype=torch.float32),
    ]


def _by_chance(draw: Draw) -> Case:
    heads, groups = draw.one_of((2, 2), (1, 1), (4, 2))
    sizes = draw.one_of(2, 1), heads, groups, draw.one_of(7, 3, 12), draw.one_of(3, 1), 2
    return Case(
        "sizes by chance", _arguments(draw.numbers, *sizes, draw.one_of(3, 2, 5)), any_dtype(draw)
    )


def _first_token(run: Run, case: Case) -> Problem | None:
    """The first output is the first value: there is nothing else."""
    value = case.arrays()["value"]
    repeats = case.arguments["query"].shape[1] // value.shape[1]
    expected = np.repeat(value[:, :, :1], repeats, axis=1)
    return compare(expected, run.value(case)[:, :, :1], run.expected(case)[1], "the first output")


def _moved(run: Run, case: Case) -> np.ndarray:
    """By how much each output changes with the first value, (L)."""
    value = case.arguments["value"].copy()
    value[:, :, 0] += 10
    return np.abs(run.value(case, value=value) - run.value(case)).max(axis=(0, 1, 3))


def _oldest(run: Run, case: Case) -> Problem | None:
    last = min(case.arguments["window"], case.arguments["key"].shape[2]) - 1
    if _moved(run, case)[last] > 2 * run.expected(case)[1]:
        return None
    return Problem(f"another output at position {last} when value 0 changes", "the same output")


def _left(run: Run, case: Case) -> Problem | None:
    window, value = case.arguments["window"], case.arguments["value"].copy()
    value[:, :, 0] += 10
    before, after = (
        each[:, :, window:] for each in (run.value(case), run.value(case, value=value))
    )
    when = "value 0 changes"
    what = f"an output from position {window} on"
    return unchanged(before, after, 2 * run.expected(case)[1], when, what)


RING_BUFFER = Spec(
    name="ring_buffer",
    statement="""A class; object = candidate(window) caches the keys and values of the last `window` tokens.
object.append(key, value), key (B, G, 1, d) and value (B, G, 1, dv) of one token, returns the keys and
values of the last `window` tokens, that one included: (B, G, S, d) and (B, G, S, dv) in any order, both in
the same. S is `window`, or fewer as long as there are fewer tokens.""",
    required=NAMES,
    reference=_reference,
    baseline=_baseline,
    differentiable=False,  # for generation: it may write in place
    cases=_cases,
    combine=_by_chance,
    num_drawn=4,
    build=lambda candidate, arguments: partial(feed, candidate),
    checks=(
        Check(
            "slots without a token take no part",
            "With one token so far, the output is its value. An empty slot is no key of zeros.",
            _first_token,
        ),
        Check(
            "the oldest key of the window counts",
            "A window of w holds the query's own key and the w - 1 before it.",
            _oldest,
        ),
        Check(
            "a key that has left the window changes nothing",
            "The query at position w is the first that does not attend to key 0.",
            _left,
            when=lambda case: case.arguments["window"] < case.arguments["key"].shape[2],
        ),
    ),
    mutants=mistakes_in(mutants),
    chapter=16,
)
