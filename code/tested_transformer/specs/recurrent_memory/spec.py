"""The Spec of the Recurrent Memory Transformer, around a body whose numbers can be computed in a loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import reference
from ..checks import any_dtype
from ..compare import Problem, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants

NAMES = ("x", "memory", "weight")


def causal_body(weight: Tensor) -> Any:
    """tanh(W times the mean of all tokens so far): a token reads what comes before it, and nothing else."""

    def body(x: Tensor) -> Tensor:
        counts = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]
        return torch.tanh(x.cumsum(1) / counts @ weight.mT)

    return body


def build(candidate: Any, arguments: dict[str, Any]) -> Any:
    """The candidate around that body."""
    return lambda x, memory, weight, **options: candidate(causal_body(weight), x, memory, **options)


def read(answer: Any, arguments: dict[str, Any]) -> Tensor | None:
    """The outputs, and the last memory after them."""
    return None if answer is None else torch.cat(tuple(answer), 1)


def _truth(**arguments: Any) -> np.ndarray:
    return np.concatenate(reference.read_by_segments(**arguments), 1)


def _arguments(rng: np.random.Generator, batch, length, num_memory, width) -> dict[str, Any]:
    shapes = ((batch, length, width), (batch, num_memory, width), (width, width))
    return {name: rng.normal(size=shape) for name, shape in zip(NAMES, shapes, strict=True)}


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, **options) -> Case:
        return Case(label, _arguments(rng, *sizes) | options, dtype)

    return [
        case("one token", 1, 1, 1, 2, segment_length=1),
        case("two segments of one", 1, 2, 1, 3, segment_length=1),
        case("two segments of two, two memory tokens", 2, 4, 2, 3, segment_length=2),
        case("a last segment that is shorter", 1, 5, 2, 3, segment_length=3),
        case("three segments, a gradient through two", 1, 5, 1, 2, segment_length=2, backprop_segments=2),
        case("a gradient through one", 1, 3, 1, 2, segment_length=1, backprop_segments=1),
        case("one segment alone", 1, 3, 2, 2, segment_length=5),
        case("float32", 2, 4, 1, 3, segment_length=2, dtype=torch.float32),
        case("no sequences", 0, 4, 1, 3, segment_length=2),
    ]  # fmt: skip


def _by_chance(draw: Draw) -> Case:
    sizes = (draw.one_of(1, 2), draw.one_of(3, 1, 5), draw.one_of(1, 3), draw.one_of(2, 4))
    arguments = _arguments(draw.numbers, *sizes) | {"segment_length": draw.one_of(2, 1, 3)}
    if draw.one_of(False, True):
        arguments["backprop_segments"] = draw.one_of(1, 2)
    return Case("sizes by chance", arguments, any_dtype(draw))


def _last_changed(run: Run, case: Case) -> Problem | None:
    x, last = case.arguments["x"].copy(), case.arguments["x"].shape[1] - 1
    x[:, -1] += 1.0
    before, after = run.value(case)[:, :last], run.value(case, x=x)[:, :last]
    slack = 2 * run.expected(case)[1]
    return unchanged(before, after, slack, "the last token changes", "an earlier output")


def _first_changed(run: Run, case: Case) -> Problem | None:
    x, last = case.arguments["x"].copy(), case.arguments["x"].shape[1] - 1
    x[:, 0] += 1.0
    before, after = run.value(case)[:, last], run.value(case, x=x)[:, last]
    if np.abs(before - after).max() > 2 * run.expected(case)[1]:
        return None
    return Problem("another output of the last segment when the first token changes", "the same")


def _has_segments(case: Case) -> bool:
    a = case.arguments
    return not case.is_empty and a["x"].shape[1] > a["segment_length"]


READ_BY_SEGMENTS = Spec(
    name="read_by_segments",
    statement="read_by_segments(body, x, memory, *, segment_length, backprop_segments) -> (outputs, memory). x (B, L, D) is "
    "split into segments of segment_length, the last of which may be shorter. body gets the memory (B, M, D), the "
    "segment and the memory once more, one after the other; its outputs for the segment are the outputs, those for the "
    "second copy are the memory for the next segment. backprop_segments: the memory is detached after each group of so "
    "many segments; None: never. -> (B, L, D), (B, M, D)",
    required=NAMES,
    reference=_truth,
    baseline=lambda x, memory, weight, **options: mutants.MemoryTokensFormula()(
        causal_body(weight), x, memory, **options
    ),
    cases=_cases,
    combine=_by_chance,
    num_drawn=3,
    build=build,
    read=read,
    checks=(
        Check(
            "the first tokens do not depend on later ones",
            "Outputs are those of the segment; the writing copy after it has seen all of it.",
            _last_changed,
            when=lambda case: not case.is_empty and case.arguments["x"].shape[1] > 1,
        ),
        Check(
            "a later segment depends on an earlier one",
            "What the copy after the segment becomes is the memory of the next segment.",
            _first_changed,
            when=_has_segments,
        ),
    ),
    mutants=mistakes_in(mutants),
    chapter=18,
)
