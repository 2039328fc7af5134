"""The Spec of cached decoding: fed in chunks of any size, the outputs are those of one pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ... import reference
from ...errors import BackendError
from ...functional.attention import attention
from ..attention.spec import textbook
from ..compare import Problem, as_array, unchanged
from ..mistakes import mistakes_in
from ..spec import SHAPE, UNTOUCHED, Case, Check, Run, Spec, finite
from . import mutants

STATEMENT = """A class; each object remembers the keys and values that it was given. Either
object(query, key, value, mask) -> output: causal attention of a chunk to everything so far, itself
included, all (B, H, L, d); mask (B, 1, 1, S), True for real tokens of the S so far, or None;
or object.append(key, value) -> (keys, values), everything so far. object.reorder(rows) rearranges the
batch, as often as it is called: rows may repeat, be left out, be more or fewer than before."""
CAPACITY = 2  # where a store takes one: small, so that it must grow


def build(candidate: Any, arguments: dict[str, Any]) -> Callable[..., Tensor]:
    """A function that feeds a whole sequence to a new object, chunk by chunk."""
    return partial(feed, candidate)


def feed(candidate, query, key, value, chunks, real, rows) -> Tensor | None:
    """Feed the chunks; after each, rearrange the batch if rows for it are given.

    A chunk has as many samples as there are by then, the first of those given; the outputs of those
    that are not there are 0.
    """
    takes = inspect.signature(candidate).parameters
    cache = candidate(capacity=CAPACITY) if "capacity" in takes else candidate()
    if rows is not None and not hasattr(cache, "reorder"):
        raise BackendError("has no `reorder`")
    attend = cache if callable(cache) else partial(_attend_with, cache)
    outputs, start, batch = [], 0, len(query)
    for number, size in enumerate(chunks):
        stop = start + size
        mask = None if real is None else real[:batch, None, None, :stop]
        output = attend(*(t[:batch, :, start:stop] for t in (query, key, value)), mask)
        if output is None:  # an exercise not written yet
            return None
        outputs.append(functional.pad(output, (0, 0) * 3 + (0, len(query) - batch)))
        moved = rows[number] if rows is not None and number < len(rows) else None
        if moved is not None:
            cache.reorder(torch.as_tensor(moved))
            batch = len(moved)
            if real is not None:
                rest = real[len(moved) :, :stop]
                real = torch.cat([torch.cat([real[list(moved), :stop], rest]), real[:, stop:]], 1)
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
    if rows is None:
        output = reference.cached_attention(query, key, value, chunks, real, None)
    else:
        output = _sample_by_sample(query, key, value, chunks, real, rows)
    return output if real is None else np.where(real[:, None, :, None], output, 0.0)


def histories(chunks, rows, batch) -> list[list[list[int]]]:
    """For each chunk, and each sample that is there, the sample that it was at every token so far."""
    now: list[list[int]] = [[] for _ in range(batch)]
    found = []
    for number, size in enumerate(chunks):
        now = [past + [b] * size for b, past in enumerate(now)]
        found.append(now)
        moved = rows[number] if number < len(rows) else None
        now = now if moved is None else [now[row] for row in moved]
    return found


def _sample_by_sample(query, key, value, chunks, real, rows):
    """Each sample of each chunk with the past that is its own, by the reference."""
    output, start = np.zeros((*query.shape[:-1], value.shape[-1]), dtype=query.dtype), 0
    for size, samples in zip(chunks, histories(chunks, rows, len(query)), strict=True):
        own = slice(start, start + size)
        for b, past in enumerate(samples):
            keys, values = (t[past, :, range(len(past))].swapaxes(0, 1)[None] for t in (key, value))
            mask = None if real is None else real[past, range(len(past))][None, None, None]
            arguments = {"mask": mask, "causal": True}
            output[b : b + 1, :, own] = reference.attention(
                query[b : b + 1, :, own], keys, values, **arguments
            )
        start += size
    return output


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, chunks, batch, heads, d, *, dv=None, real=None, rows=None, dtype=torch.float64,
             turned=False) -> Case:  # fmt: skip
        """rows: after each chunk, which rows go on. Turned: in memory as (B, L, H, d)."""
        shape = (batch, heads, sum(chunks))
        tensors = {name: rng.normal(size=(*shape, d)) for name in ("query", "key")}
        tensors["value"] = rng.normal(size=(*shape, dv or d))
        if turned:
            tensors = {n: t.swapaxes(1, 2).copy().swapaxes(1, 2) for n, t in tensors.items()}
        real = None if real is None else np.array(real, dtype=bool)
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
        case("rows rearranged", (3, 1, 2), 3, 2, 4, rows=((1, 1, 0),)),
        case("rows rearranged and padded", (4, 1, 2), 3, 2, 5, real=left, rows=((2, 0, 0),)),
        case("float32", (2, 3), 2, 3, 4, dtype=torch.float32),
        case("bfloat16", (3, 1, 1), 2, 2, 4, dtype=torch.bfloat16),
        case("float16", (2, 1, 2), 2, 2, 4, dtype=torch.float16),
        case("values of another size", (2, 1, 1), 2, 2, 3, dv=5),
        case("one sample, one head, one number", (1, 1, 1), 1, 1, 1),
        case("heads split from one matrix", (2, 1, 2), 2, 3, 4, turned=True),
        case("70 tokens", (40, 1, 29), 1, 1, 1),
        case("padding in a later chunk", (2, 4, 1), 2, 2, 3, real=[[1] * 7, [1, 1, 1, 0, 0, 1, 1]]),
        case("rows rearranged again and again", (2, 1, 2, 1), 3, 2, 3,
             rows=((2, 0, 0), (1, 2, 0), (0, 0, 1))),
        case("rows that become fewer", (2, 2, 1), 3, 2, 3, rows=((2, 0), (1,))),
        case("rows that become more", (2, 1, 2), 4, 2, 3, rows=((1, 3), (0, 1, 1, 0))),
        case("rows that become fewer, and padded", (4, 1, 2), 3, 2, 4, real=left, rows=((2, 0), (1,))),
    ]  # fmt: skip


def _plain(case: Case) -> bool:
    a = case.arguments
    return a["real"] is None and a["rows"] is None and case.dtype == torch.float64


def _single(case: Case) -> bool:
    return _plain(case) and set(case.arguments["chunks"]) == {1}


def _several(case: Case) -> bool:
    return _plain(case) and max(case.arguments["chunks"][1:], default=1) > 1


def _one_pass(run: Run, case: Case) -> Problem | None:
    whole = run.value(case, chunks=(sum(case.arguments["chunks"]),))
    when = "the tokens come in chunks"
    return unchanged(whole, run.value(case), _slack(run, case), when, "the output")


def _slack(run: Run, case: Case) -> float:
    """How far two answers may be apart that are the same but for rounding."""
    return 2 * run.expected(case)[1]


def _remembers(run: Run, case: Case) -> Problem | None:
    """A different first value must reach the last output."""
    value = case.arguments["value"].copy()
    value[:, :, 0] += 10
    moved = np.abs(run.value(case, value=value) - run.value(case))[:, :, -1].max()
    return None if moved > _slack(run, case) else Problem("another last output", "the same")


def _future(run: Run, case: Case) -> Problem | None:
    changed = {name: case.arguments[name].copy() for name in ("key", "value")}
    for array in changed.values():
        array[:, :, -1] += 10
    before, after = run.value(case), run.value(case, **changed)
    when, what = "the last token changes", "what earlier tokens get"
    return unchanged(before[:, :, :-1], after[:, :, :-1], _slack(run, case), when, what)


def _padding(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    real = a["real"][:, None, :, None]
    changed = {name: np.where(real, a[name], 50.0) for name in ("key", "value")}
    when = "padding holds other numbers"
    return unchanged(run.value(case), run.value(case, **changed), _slack(run, case), when)


def _rows(run: Run, case: Case) -> Problem | None:
    """A row that goes on where row r was must do as if it had been row r from the start."""
    a, last = case.arguments, case.arguments["chunks"][-1]
    past = histories(a["chunks"], a["rows"], len(a["query"]))[-1]
    moved = {
        name: np.stack([a[name][row, :, range(len(row))].swapaxes(0, 1) for row in past])
        for name in ("key", "value")
    }
    alone = run.value(case, rows=None, query=a["query"][: len(past)], **moved)
    after, when = run.value(case)[: len(past)], "it was that row from the start"
    return unchanged(
        alone[:, :, -last:],
        after[:, :, -last:],
        _slack(run, case),
        when,
        "the last output of a row",
    )


def _beside(run: Run, case: Case) -> Problem | None:
    """A second object gets other keys and values in between, as the next layer's does."""
    kind = Beside if callable(run.candidate()) else StoreBeside
    made = partial(kind, run.candidate)
    after = as_array(run.spec.read(feed(made, **case.tensors()), case.tensors()))
    when = "another object is fed in between"
    return unchanged(run.value(case), after, _slack(run, case), when)


class StoreBeside:
    """Two stores; the second gets the first one's keys and values with the other sign."""

    def __init__(self, candidate: Callable[[], Any]) -> None:
        self.one, self.other = candidate(), candidate()

    def append(self, key: Tensor, value: Tensor) -> Any:
        """What the first one returns."""
        self.other.append(-key, -value)
        return self.one.append(key, value)

    def reorder(self, rows: Tensor) -> None:
        """Both move."""
        self.one.reorder(rows)
        self.other.reorder(rows)


class Beside(StoreBeside):
    """The same, where the objects attend as well."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """What the first one returns."""
        self.other(query, -key, -value, mask)
        return self.one(query, key, value, mask)


CHECKS = (
    Check(
        "a row takes its keys along",
        "When the batch is rearranged, keys and values must move with it.",
        _rows,
        needs=("rows",),
        when=lambda case: case.arguments["real"] is None,
    ),
    SHAPE,
    UNTOUCHED,
    Check("the outputs are numbers", "NaN or infinity, where all that came in was finite.", finite),
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
        "each object remembers for itself",
        "Every layer has an object of its own: what one was given no other may know.",
        _beside,
        when=lambda case: _plain(case) and len(case.arguments["chunks"]) > 1,
    ),
    Check(
        "padding changes nothing",
        "Padded tokens stay hidden from every later chunk, not only from their own.",
        _padding,
        needs=("real",),
        when=lambda case: case.arguments["rows"] is None,
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
    may_refuse=True,
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
