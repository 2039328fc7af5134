"""The Spec of cached decoding: fed in chunks of any size, the outputs are those of one pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import reference
from ...errors import BackendError
from ...functional.attention import attention
from ..attention.spec import textbook
from ..compare import Problem, compare
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants

STATEMENT = """A class; each object remembers the keys and values that it was given. Either
object(query, key, value, mask) -> output: causal attention of a chunk to everything so far, itself
included, all (B, H, L, d); mask (B, 1, 1, S), True for real tokens of the S so far, or None;
or object.append(key, value) -> (keys, values), everything so far. object.select(rows) rearranges the batch."""
CAPACITY = 2  # where a store takes one: small, so that it must grow
ROUNDING = 1e-9  # between two answers in float64 that should be the same


def build(candidate: Any, arguments: dict[str, Any]) -> Callable[..., Tensor]:
    """A function that feeds a whole sequence to a new object, chunk by chunk."""
    return partial(feed, candidate)


def feed(candidate, query, key, value, chunks, real, rows) -> Tensor | None:
    """Feed the chunks; after the first, rearrange the rows if some are given."""
    takes = inspect.signature(candidate).parameters
    cache = candidate(capacity=CAPACITY) if "capacity" in takes else candidate()
    if rows is not None and not hasattr(cache, "reorder"):
        raise BackendError("has no `reorder`")
    attend = cache if callable(cache) else partial(_attend_with, cache)
    outputs, start = [], 0
    for size in chunks:
        stop = start + size
        mask = None if real is None else real[:, None, None, :stop]
        outputs.append(attend(*(t[:, :, start:stop] for t in (query, key, value)), mask))
        if outputs[-1] is None:  # an exercise not written yet
            return None
        if start == 0 and rows is not None:
            cache.reorder(rows)
            if real is not None:
                real = torch.cat([real[rows, :stop], real[:, stop:]], dim=1)
        start = stop
    return torch.cat(outputs, dim=2)


def _attend_with(cache: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None):
    return attention(query, *cache.append(key, value), mask=mask, causal=True)


def _read(answer: Tensor, arguments: dict[str, Any]) -> Tensor:
    """What a padded query gets is nobody's business."""
    real = arguments["real"]
    return answer if real is None else answer.masked_fill(~real[:, None, :, None], 0.0)


def slow(query, key, value, chunks, real, rows):
    """The reference, with the outputs of padded queries left out."""
    output = reference.cached_attention(query, key, value, chunks, real, rows)
    return output if real is None else np.where(real[:, None, :, None], output, 0.0)


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, chunks, batch, heads, d, *, real=None, rows=None, dtype=torch.float64) -> Case:
        shape = (batch, heads, sum(chunks), d)
        tensors = {name: rng.normal(size=shape) for name in ("query", "key", "value")}
        real = None if real is None else np.array(real, dtype=bool)
        rows = None if rows is None else np.array(rows)
        return Case(label, {**tensors, "chunks": chunks, "real": real, "rows": rows}, dtype)

    cut = tuple(int(n) for n in rng.multinomial(9, [0.3] * 3 + [0.1]) if n)
    left = [[0, 0, 0, 1, 1, 1, 1], [1] * 7, [0, 1, 1, 1, 1, 1, 1]]
    right = [[1, 1, 1, 0, 1, 1], [1, 0, 0, 0, 1, 0]]
    return [
        case("two tokens, one by one", (1, 1), 1, 1, 2),
        case("all at once", (3,), 2, 2, 4),
        case("one by one", (1,) * 5, 2, 3, 4),
        case("a prompt, then one by one", (3, 1, 1), 2, 1, 3),
        case("chunks of several", (2, 3, 1, 4), 2, 3, 5),
        case("chunks of random sizes", cut, 3, 2, 4),
        case("padded on the left", (4, 1, 2), 3, 2, 4, real=left),
        case("padded on the right", (4, 2), 2, 2, 3, real=right),
        case("rows rearranged", (3, 1, 2), 3, 2, 4, rows=[1, 1, 0]),
        case("rows rearranged and padded", (4, 1, 2), 3, 2, 5, real=left, rows=[2, 0, 0]),
        case("float32", (2, 3), 2, 3, 4, dtype=torch.float32),
        case("bfloat16", (3, 1, 1), 2, 2, 4, dtype=torch.bfloat16),
    ]


def _plain(case: Case) -> bool:
    a = case.arguments
    return a["real"] is None and a["rows"] is None and case.dtype == torch.float64


def _single(case: Case) -> bool:
    return _plain(case) and set(case.arguments["chunks"]) == {1}


def _several(case: Case) -> bool:
    return _plain(case) and max(case.arguments["chunks"][1:], default=1) > 1


def _one_pass(run: Run, case: Case) -> Problem | None:
    whole = run.value(case, chunks=(sum(case.arguments["chunks"]),))
    return compare(whole, run.value(case), ROUNDING)


def _remembers(run: Run, case: Case) -> Problem | None:
    """A different first value must reach the last output."""
    value = case.arguments["value"].copy()
    value[:, :, 0] += 10
    moved = np.abs(run.value(case, value=value) - run.value(case))[:, :, -1].max()
    return None if moved > ROUNDING else Problem("another last output", "the same")


def _future(run: Run, case: Case) -> Problem | None:
    changed = {name: case.arguments[name].copy() for name in ("key", "value")}
    for array in changed.values():
        array[:, :, -1] += 10
    before, after = run.value(case), run.value(case, **changed)
    return compare(before[:, :, :-1], after[:, :, :-1], ROUNDING)


def _padding(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    real = a["real"][:, None, :, None]
    changed = {name: np.where(real, a[name], 50.0) for name in ("key", "value")}
    return compare(run.value(case), run.value(case, **changed), ROUNDING)


def _rows(run: Run, case: Case) -> Problem | None:
    """A row that goes on where row r was must do as if it had been row r from the start."""
    a, first = case.arguments, case.arguments["chunks"][0]
    moved = {
        name: np.concatenate([a[name][a["rows"]][:, :, :first], a[name][:, :, first:]], axis=2)
        for name in ("key", "value")
    }
    expected = run.value(case, rows=None, **moved)[:, :, first:]
    return compare(expected, run.value(case)[:, :, first:], ROUNDING, "outputs after the move")


CHECKS = (
    Check(
        "the first token is never forgotten",
        "The last output depends on the first token, however often the cache had to grow.",
        _remembers,
        when=lambda case: _plain(case) and len(case.arguments["chunks"]) > 1,
    ),
    Check(
        "one by one equals one pass",
        "A new query stands at the last key and sees everything before it, itself included.",
        _one_pass,
        when=_single,
    ),
    Check(
        "several at once equal one pass",
        "Inside a chunk the first token must not see the second: the mask is j <= i + S - L.",
        _one_pass,
        when=_several,
    ),
    Check(
        "the future stays hidden",
        "Changing the last token must leave all earlier outputs alone, in whatever chunk it comes.",
        _future,
        when=_plain,
    ),
    Check(
        "padding changes nothing",
        "Padded tokens stay hidden from every later chunk, not only from their own.",
        _padding,
        needs=("real",),
        when=lambda case: case.arguments["rows"] is None,
    ),
    Check(
        "a row takes its keys along",
        "When the batch is rearranged, keys and values must move with it.",
        _rows,
        needs=("rows",),
        when=lambda case: case.arguments["real"] is None,
    ),
)


def _baseline(query, key, value, chunks, real, rows) -> Tensor:
    """The right store; attention in the dtype of the case."""
    return feed(PlainDecoder, query, key, value, chunks, real, rows)


class PlainDecoder:
    """The formula with nothing upcast."""

    def __init__(self) -> None:
        self.kept: tuple[Tensor, ...] = ()

    def __call__(self, query, key, value, mask):
        """Append, attend."""
        new = (key, value)
        kept = (
            [torch.cat(pair, 2) for pair in zip(self.kept, new, strict=True)] if self.kept else new
        )
        self.kept = tuple(kept)
        return textbook(query, *self.kept, mask=mask, causal=True)

    def reorder(self, rows: Tensor) -> None:
        """Keep these rows."""
        self.kept = tuple(t[rows] for t in self.kept)


CACHE = Spec(
    name="cache",
    statement=STATEMENT,
    required=("query", "key", "value", "chunks", "real", "rows"),
    reference=slow,
    baseline=_baseline,
    cases=_cases,
    checks=CHECKS,
    mutants=mistakes_in(mutants),
    build=build,
    read=_read,
    differentiable=False,  # for generation: a store may write in place
    chapter=5,
)
