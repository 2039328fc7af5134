"""The Spec of attention with learned sinks: one more logit per head, in the denominator alone."""

from __future__ import annotations

import numpy as np
import torch

from ... import reference
from ..checks import any_dtype, largest, transposed
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants

NAMES = ("query", "key", "value", "sinks")
LARGE = 200.0  # exp(score - 200) is below any rounding of what the head returned
AS_ONE = 30.0  # what a constant on all logits is: far more than the scores of a case


def _arguments(rng: np.random.Generator, batch, heads, groups, lengths, widths) -> dict:
    (length, keys), (width, values) = lengths, widths
    shapes = (
        (batch, heads, length, width),
        (batch, groups, keys, width),
        (batch, groups, keys, values),
    )
    made = {name: rng.normal(size=shape) for name, shape in zip(NAMES, shapes, strict=False)}
    return made | {"sinks": 2 * rng.normal(size=heads)}


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, **options) -> Case:
        return Case(label, _arguments(rng, *sizes) | options, dtype)

    small = (2, 3, 3, (4, 5), (6, 2))
    mask = rng.random((2, 1, 4, 5)) < 0.6
    hidden = np.array([[True, False, True], [False, False, False]])
    own_masks = np.arange(120).reshape(2, 3, 4, 5) % 7 > 1  # of each head
    every = {"mask": own_masks, "bias": own_masks.sum(0, keepdims=True) - 1.5, "scale": 0.3}
    every |= {"causal": True, "window": 3}
    return [
        case("one head, one key", 1, 1, 1, (1, 1), (2, 3)),
        case("two heads, three keys", 1, 2, 2, (2, 3), (4, 2)),
        case("grouped-query attention", 2, 6, 2, (3, 5), (4, 7)),
        case("causal", 2, 3, 3, (5, 5), (4, 2), causal=True),
        case("one query after a cache", 2, 4, 2, (1, 7), (5, 3), causal=True),
        case("a causal window", 2, 3, 1, (6, 8), (4, 5), causal=True, window=3),
        case("a window", 1, 2, 2, (5, 5), (3, 4), window=2),
        case("a mask", *small, mask=mask),
        case("a fully masked query", 1, 2, 2, (2, 3), (4, 5), mask=hidden),
        case("a bias", *small, bias=rng.normal(size=(3, 4, 5))[None]),
        case("all options at once", *small, **every),
        case("float32", 2, 4, 2, (5, 5), (6, 3), causal=True, dtype=torch.float32),
        Case("transposed tensors", transposed(_arguments(rng, *small))),
        case("no keys", 2, 2, 2, (3, 0), (4, 5)),
        case("no queries", 2, 2, 1, (0, 3), (4, 5)),
    ]


def _by_chance(draw: Draw) -> Case:
    groups, shared = draw.one_of(1, 2, 3), draw.one_of(1, 2, 3)
    new, past = draw.one_of(2, 1, 4), draw.one_of(0, 1, 3)
    widths = draw.one_of(3, 1, 6), draw.one_of(2, 1, 5)
    sizes = draw.one_of(1, 2), groups * shared, groups, (new, new + past), widths
    options = {"causal": True} if draw.one_of(True, False) else {}
    options |= {"window": draw.one_of(2, 1, 3)} if draw.one_of(False, True) else {}
    return Case("sizes by chance", _arguments(draw.numbers, *sizes) | options, any_dtype(draw))


def _silent(run: Run, case: Case) -> Problem | None:
    """With large sinks a head attends to nothing, and returns nothing."""
    large = np.full_like(case.arguments["sinks"], LARGE)
    got = run.value(case, sinks=large)
    what = f"with all sinks at {LARGE:g}, the output"
    return compare(np.zeros_like(got), got, run.expected(case)[1], what)


def _none(run: Run, case: Case) -> Problem | None:
    """Very small sinks leave plain attention."""
    without = {name: each for name, each in case.arrays().items() if name != "sinks"}
    got = run.value(case, sinks=np.full_like(case.arguments["sinks"], -LARGE))
    plain = reference.attention(**without)
    slack = run.expected(case)[1] + case.rounding(case.arguments["key"].shape[2]) * largest(plain)
    return compare(plain, got, slack, f"with all sinks at {-LARGE:g}, the output")


def _own_head(run: Run, case: Case) -> Problem | None:
    """A large sink in the first head leaves the others alone."""
    sinks = case.arguments["sinks"].copy()
    sinks[0] = LARGE
    before, after = run.value(case)[:, 1:], run.value(case, sinks=sinks)[:, 1:]
    slack = 2 * run.expected(case)[1]
    return unchanged(
        before, after, slack, "the sink of the first head changes", "another head's output"
    )


def _one_key(run: Run, case: Case) -> Problem | None:
    """Queries of 0 and sinks of 0: all n keys and the sink have a weight of 1 / (n + 1)."""
    zeros = {name: np.zeros_like(case.arguments[name]) for name in ("query", "sinks")}
    ones = np.ones_like(case.arguments["value"])
    got, keys = run.value(case, **zeros, value=ones), ones.shape[2]
    expected = np.full(got.shape, keys / (keys + 1))
    what = "with equal scores and values of 1, the output"
    return compare(expected, got, case.rounding(keys), what)


def _shifted(run: Run, case: Case) -> Problem | None:
    """A softmax does not change when all its logits do, by the same amount."""
    sizes = case.arguments["query"].shape[2], case.arguments["key"].shape[2]
    moved = {"sinks": case.arguments["sinks"] + AS_ONE, "bias": np.full(sizes, AS_ONE)}
    size = largest(case.arguments["value"])
    slack = 2 * run.expected(case)[1] + 8 * AS_ONE * torch.finfo(case.dtype).eps * size
    when = f"all scores and the sinks are larger by {AS_ONE:g}"
    return unchanged(run.value(case), run.value(case, **moved), slack, when, "the output")


def _is_free(case: Case) -> bool:
    """Whether every query may attend to every key."""
    return not {"mask", "bias", "causal", "window"} & case.arguments.keys() and not case.is_empty


SINK_ATTENTION = Spec(
    name="sink_attention",
    statement="sink_attention(query, key, value, sinks, *, mask, bias, causal, window, scale): attention with "
    "one learned logit per head in the denominator of its softmax. The weight of an allowed key is "
    "exp(score) / (exp(sink) + the sum of all exp(score)). Nothing masks a sink. query (B, H, L, d), key "
    "(B, G, S, d), value (B, G, S, dv), sinks (H) -> (B, H, L, dv)",
    required=NAMES,
    reference=reference.sink_attention,
    baseline=mutants.SinkFormula(),
    cases=_cases,
    combine=_by_chance,
    num_drawn=5,
    checks=(
        Check(
            "a large sink silences its head",
            "A sink far above all scores takes all the weight, and has no value: the output is 0.",
            _silent,
            when=lambda case: not case.is_empty,
        ),
        Check(
            "a very small sink is none",
            "exp(sink) is as good as 0 then: the denominator is that of plain attention.",
            _none,
            when=lambda case: not case.is_empty,
        ),
        Check(
            "a sink is that of its head",
            "Each head has a number of its own, and no other head reads it.",
            _own_head,
            when=lambda case: len(case.arguments["sinks"]) > 1 and not case.is_empty,
        ),
        Check(
            "among equal scores a sink counts as one key",
            "With n keys of score 0 and a sink of 0 every weight is 1 / (n + 1).",
            _one_key,
            when=_is_free,
        ),
        Check(
            "a constant on all scores and on the sink changes nothing",
            "The sink is a logit like any other: it stands beside the scaled scores, itself unscaled.",
            _shifted,
            when=_is_free,
        ),
    ),
    mutants=mistakes_in(mutants),
    chapter=16,
)
