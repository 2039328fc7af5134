"""The Spec of Infini-attention: read before write, weights above 0, a gate per head, a state handed on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ... import reference
from ..checks import any_dtype, larger, transposed
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import AGAIN, EQUAL, GRADIENTS, Case, Check, Run, Spec, finite
from . import mutants

NAMES = ("query", "key", "value", "gate")
CLOSED, OPEN = -50.0, 50.0  # gates whose sigmoid is 0 and 1 up to rounding


def read(answer: Any, arguments: dict[str, Any]) -> torch.Tensor | None:
    """The output, the memory below it, and the normalizer as a row of as many features."""
    if answer is None:
        return None
    output, memory, normalizer = answer
    spread = normalizer[..., None].expand(memory.shape)
    return torch.cat((output, memory.to(output), spread.to(output)), 2)


def _truth(**arguments: Any) -> np.ndarray:
    output, memory, normalizer = reference.infini_attention(**arguments)
    spread = np.broadcast_to(normalizer[..., None], memory.shape)
    return np.concatenate((output, memory, spread), 2)


def _length(case: Case) -> int:
    return case.arguments["query"].shape[2]


def _arguments(rng: np.random.Generator, batch, heads, length, widths, state=False) -> dict:
    shapes = ((batch, heads, length, width) for width in (widths[0], *widths))
    made = {name: rng.normal(size=shape) for name, shape in zip(NAMES, shapes, strict=False)}
    made["gate"] = rng.normal(size=heads)
    if state:
        made["memory"] = rng.normal(size=(batch, heads, *widths))
        made["normalizer"] = rng.uniform(1.0, 2.0, (batch, heads, widths[0]))
    return made


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, segment_length, state=False, dtype=torch.float64, **options) -> Case:
        arguments = _arguments(rng, *sizes, state) | {"segment_length": segment_length} | options
        return Case(label, arguments, dtype)

    small = (1, 2, 3, (2, 2))
    return [
        case("one token, one head", 1, 1, 1, (2, 3), segment_length=1),
        case("three segments of one", 1, 2, 3, (3, 2), segment_length=1),
        case("two segments of two", 2, 1, 4, (3, 2), segment_length=2),
        case("a last segment that is shorter", *small, segment_length=2),
        case("one segment alone", *small, segment_length=7),
        case("after a memory", *small, segment_length=3, state=True),
        case("the delta rule", *small, segment_length=2, delta=True),
        case("all options at once", 1, 1, 3, (2, 3), segment_length=2, delta=True, state=True, scale=0.3),
        larger(case("a scale of its own, in float32", *small, segment_length=2, scale=0.3, dtype=torch.float32),
               key=200.0),
        Case("transposed tensors", transposed(_arguments(rng, *small)) | {"segment_length": 2}),
        case("no tokens", 1, 2, 0, (3, 2), segment_length=2, state=True),
    ]  # fmt: skip


def _by_chance(draw: Draw) -> Case:
    sizes = (
        draw.one_of(1, 2), draw.one_of(2, 1), draw.one_of(4, 1, 3),
        (draw.one_of(3, 1, 4), draw.one_of(2, 1, 3)),
    )  # fmt: skip
    arguments = _arguments(draw.numbers, *sizes, draw.one_of(False, True))
    arguments["segment_length"] = draw.one_of(2, 1, 3)
    arguments["delta"] = draw.one_of(False, True)
    return Case("sizes by chance", arguments, any_dtype(draw))


def _is_long(case: Case) -> bool:
    return _length(case) > 1 and not case.is_empty


def _future(run: Run, case: Case) -> Problem | None:
    changed = {n: case.arguments[n].copy() for n in ("key", "value")}
    for each in changed.values():
        each[:, :, -1] += 1.0
    last = _length(case) - 1
    before, after = run.value(case)[:, :, :last], run.value(case, **changed)[:, :, :last]
    slack = 3 * run.expected(case)[1]  # one value is larger by 1
    return unchanged(before, after, slack, "the last token changes", "an earlier output")


def _closed(run: Run, case: Case) -> Problem | None:
    """With a closed gate other tokens of the first segment change nothing in the second."""
    first = case.arguments["segment_length"]
    gates = {"gate": np.full_like(case.arguments["gate"], CLOSED)}
    other = gates | {"value": case.arguments["value"].copy()}
    other["value"][:, :, :first] += 1.0
    before, after = (
        run.value(case, **each)[:, :, first : _length(case)] for each in (gates, other)
    )
    slack = 3 * run.expected(case)[1]  # values are larger by 1
    when, what = "the gate is closed and the first segment changes", "the second segment's output"
    return unchanged(before, after, slack, when, what)


def _own_gate(run: Run, case: Case) -> Problem | None:
    gate = case.arguments["gate"].copy()
    gate[0] += 1.0
    before, after = run.value(case)[:, 1:], run.value(case, gate=gate)[:, 1:]
    slack = 2 * run.expected(case)[1]
    return unchanged(
        before, after, slack, "the first head has another gate", "another head's output"
    )


def _among_values(run: Run, case: Case) -> Problem | None:
    """With an open gate the last token's output lies between the least and the largest value before."""
    values = case.arguments["value"] + 9.0
    got = run.value(case, gate=np.full_like(case.arguments["gate"], OPEN), value=values)
    got = got[:, :, _length(case) - 1]
    slack = 9 * run.expected(case)[1]  # the values are so much larger
    least, most = values.min(2) - slack, values.max(2) + slack
    outside = np.argwhere(~((got >= least) & (got <= most)))
    if not len(outside):
        return None
    place = tuple(outside[0].tolist())
    expected = (
        f"with an open gate, between {least[place]:.3g} and {most[place]:.3g}, as the values are"
    )
    return Problem(expected, f"{got[place]:.3g}")


def _known(run: Run, case: Case) -> Problem | None:
    """Values that are all 1 are recalled as 1: with the delta rule the second segment writes nothing."""
    segment, width = case.arguments["segment_length"], case.arguments["query"].shape[-1]
    ones = {n: case.arguments[n] for n in ("query", "key")}
    ones["value"] = np.ones_like(case.arguments["value"])
    one, two = ({n: a[:, :, : k * segment] for n, a in ones.items()} for k in (1, 2))
    expected, slack = run.expected(case, **one)
    got = run.value(case, **two)[:, :, two["value"].shape[2] :][:, :, :width]
    slack = slack + run.expected(case, **two)[1]
    what = "with values of 1, the memory after two segments"
    return compare(expected[:, :, segment : segment + width], got, slack, what)


def _several_segments(case: Case) -> bool:
    a = case.arguments
    return not case.is_empty and _length(case) > a["segment_length"]


def _two_parts(run: Run, case: Case) -> Problem | None:
    """The segments after the first, given the memory that the reference has after it."""
    a, cut = case.arguments, case.arguments["segment_length"]
    first, rest = (
        {n: a[n][:, :, part] for n in NAMES[:3]} for part in (slice(cut), slice(cut, None))
    )
    width = a["query"].shape[-1]
    state = np.asarray(run.expected(case, **first)[0], np.float64)[:, :, cut:]
    rest |= {"memory": state[:, :, :width], "normalizer": state[:, :, width:, 0]}
    whole, parts = run.expected(case)[0][:, :, cut:], run.value(case, **rest)
    slack = run.expected(case)[1] + run.expected(case, **rest)[1]
    return compare(whole, parts, slack, "what follows the first segment, given its memory,")


def _starts_empty(case: Case) -> bool:
    return "memory" not in case.arguments


def _is_small(case: Case) -> bool:
    """Whether there are few tokens in one sequence: gradients through many segments take long."""
    return (
        not case.is_empty
        and case.arguments["query"].shape[0] == 1
        and _length(case) <= 3
        and case.dtype == torch.float64
    )


INFINI_ATTENTION = Spec(
    name="infini_attention",
    statement="infini_attention(query, key, value, gate, *, segment_length, delta, memory, normalizer, scale) -> (output, "
    "memory, normalizer). The tokens are split into segments of segment_length, the last of which may be shorter. With "
    "f(x) = ELU(x) + 1, each segment's output is sigmoid(gate) f(q) memory / (f(q) . normalizer) + (1 - sigmoid(gate)) "
    "causal attention within the segment; the first term is 0 where nothing was written. After that memory += f(K)^T V "
    "and normalizer += the sum of f(k); with delta, V - f(K) memory / (f(K) . normalizer) is written in place of V. scale: of "
    "the local scores, 1 / sqrt(d) by default. query and key (B, H, L, d), value (B, H, L, dv), gate (H) -> (B, H, L, dv), "
    "(B, H, d, dv), (B, H, d)",
    required=NAMES,
    reference=_truth,
    baseline=mutants.InfiniFormula(),
    cases=_cases,
    combine=_by_chance,
    num_drawn=2,
    read=read,
    checks=(
        Check(
            "nothing is divided by 0",
            "Before the first segment the sum of all keys is 0, and the memory returns 0.",
            finite,
            when=lambda case: _starts_empty(case) and not case.is_empty,
        ),
        Check(
            "a token does not depend on later ones",
            "Read the memory first, then write the segment into it.",
            _future,
            when=_is_long,
        ),
        Check(
            "a closed gate leaves the segment alone",
            "sigmoid(gate) is the share of the memory: with a gate of -50 there is nothing but local attention.",
            _closed,
            when=_several_segments,
        ),
        Check(
            "a head has a gate of its own",
            "There is one gate per head.",
            _own_gate,
            when=lambda case: not case.is_empty and len(case.arguments["gate"]) > 1,
        ),
        Check(
            "what is recalled lies among the values",
            "ELU + 1 is above 0, so that the memory returns a weighted mean of the values of all segments.",
            _among_values,
            when=lambda case: _several_segments(case) and _starts_empty(case)
            and not case.arguments.get("delta"),
        ),
        Check(
            "what is known is not written again",
            "The delta rule subtracts what the memory returns for the key: a weighted mean, too.",
            _known,
            when=lambda case: _several_segments(case) and _starts_empty(case)
            and case.arguments.get("delta", False),
        ),
        Check(
            "a call in two parts is one call",
            "The memory and the normalizer are all that later segments need.",
            _two_parts,
            when=_several_segments,
        ),
    ),
    last=(EQUAL, replace(GRADIENTS, when=_is_small), AGAIN),
    mutants=mistakes_in(mutants, of="infini_attention"),
    chapter=18,
)  # fmt: skip
