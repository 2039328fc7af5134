"""The Spec of Performer attention with given directions: what it estimates by chance, this computes exactly."""

from __future__ import annotations

import numpy as np
import torch

from ... import reference
from ..checks import any_dtype, transposed
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants

NAMES = ("query", "key", "value", "directions")
FAR = 60.0  # the factor by which queries and keys are made large: exp(-|x|^2 / 2) is 0 in float64


def _arguments(rng: np.random.Generator, batch, heads, lengths, widths, features) -> dict:
    (length, keys), (width, values) = lengths, widths
    shapes = (
        (batch, heads, length, width),
        (batch, heads, keys, width),
        (batch, heads, keys, values),
        (features, width),
    )
    return {name: rng.normal(size=shape) for name, shape in zip(NAMES, shapes, strict=True)}


def _large(arguments: dict, factor: float) -> dict:
    return arguments | {name: factor * arguments[name] for name in ("query", "key")}


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, **options) -> Case:
        return Case(label, _arguments(rng, *sizes) | options, dtype)

    small = (2, 3, (5, 5), (4, 2), 6)
    right = np.array([[True] * 5, [True] * 3 + [False] * 2])
    inside = np.array([[True, False, True, True, False], [False, False, True, True, True]])
    return [
        case("one query, two keys", 1, 1, (1, 2), (2, 3), 3),
        case("two queries, three keys", 1, 2, (2, 3), (3, 2), 4),
        case("two samples, three heads", *small),
        case("one direction", 1, 2, (3, 4), (3, 2), 1),
        case("causal", *small, causal=True),
        case("causal, chunks of two", *small, causal=True, chunk_size=2),
        case("causal, chunks of one", 1, 2, (4, 4), (3, 5), 5, causal=True, chunk_size=1),
        case("padding at the end", *small, key_mask=right),
        case("padding anywhere, causal", *small, key_mask=inside, causal=True, chunk_size=2),
        case("a scale of its own", *small, scale=0.3),
        case("float32", *small, dtype=torch.float32, causal=True),
        Case("large queries and keys", _large(_arguments(rng, *small), FAR)),
        Case("float16", _large(_arguments(rng, *small), 8.0), torch.float16),
        Case(
            "all options at once, transposed tensors",
            transposed(_arguments(rng, *small))
            | {"causal": True, "chunk_size": 2, "key_mask": inside, "scale": 0.3},
        ),
        case("no queries", 2, 2, (0, 4), (3, 2), 3),
        case("no keys", 2, 2, (3, 0), (3, 2), 3),
    ]


def _by_chance(draw: Draw) -> Case:
    causal = draw.one_of(False, True)
    keys = draw.one_of(3, 2, 6)
    sizes = (
        draw.one_of(1, 2), draw.one_of(2, 1, 3), (keys if causal else draw.one_of(2, 1, 5), keys),
        (draw.one_of(3, 1, 4), draw.one_of(2, 1, 5)), draw.one_of(4, 1, 7),
    )  # fmt: skip
    arguments = _arguments(draw.numbers, *sizes)
    if causal:
        arguments |= {"causal": True, "chunk_size": draw.one_of(2, 1, 4)}
    if draw.one_of(False, True):
        arguments["key_mask"] = draw.numbers.random((sizes[0], keys)) < 0.7
        arguments["key_mask"][:, :2] = True  # one key alone has a gradient of exactly 0
    return Case("sizes by chance", arguments, any_dtype(draw))


def _is_plain(case: Case) -> bool:
    """Whether there are numbers of the usual size, and no padding."""
    plain = "key_mask" not in case.arguments and not case.is_empty
    return plain and case.label not in ("large queries and keys", "float16")


def _future(run: Run, case: Case) -> Problem | None:
    """Other last keys and values: the outputs before stay."""
    changed = {n: case.arguments[n].copy() for n in ("key", "value")}
    for each in changed.values():
        each[:, :, -1] += 1.0
    before, after = run.value(case)[:, :, :-1], run.value(case, **changed)[:, :, :-1]
    slack = run.expected(case)[1] + run.expected(case, **changed)[1]
    return unchanged(before, after, slack, "the last key and value change", "an earlier output")


def _sum_to_one(run: Run, case: Case) -> Problem | None:
    """Values of one give ones, where there is a key to read."""
    ones = np.ones_like(case.arguments["value"])
    expected, slack = run.expected(case, value=ones)
    return compare(expected, run.value(case, value=ones), slack, "with values of one, the output")


def _weighed(run: Run, case: Case) -> Problem | None:
    """The weight of the first real key, and of each other, against the estimated kernel."""
    keys = case.arguments["key"].shape[2]
    shape = (*case.arguments["key"].shape[:2], keys, keys)
    each = {"value": np.broadcast_to(np.eye(keys), shape).copy()}
    expected, slack = run.expected(case, **each)
    return compare(expected, run.value(case, **each), slack, "the weights")


def _far(run: Run, case: Case) -> Problem | None:
    large = _large(case.arguments, FAR)
    large = {name: large[name] for name in ("query", "key")}
    expected, slack = run.expected(case, **large)
    what = f"with queries and keys {FAR:g} times as large, the output"
    return compare(expected, run.value(case, **large), slack, what)


def _no_key(run: Run, case: Case) -> Problem | None:
    """The last sample alone, without its padding."""
    a, real = case.arguments, case.arguments["key_mask"][-1]
    alone = {
        "query": a["query"][-1:],
        "key": a["key"][-1:, :, real],
        "value": a["value"][-1:, :, real],
    }
    slack = run.expected(case)[1] + run.expected(case, **alone, key_mask=None)[1]
    before, after = run.value(case, **alone, key_mask=None), run.value(case)[-1:]
    return unchanged(before, after, slack, "it comes in a padded batch", "the output of a sample")


def _own_key(run: Run, case: Case) -> Problem | None:
    """The first causal query reads one key: its output is that value."""
    first = case.arguments["value"][:, :, 0]
    got = run.value(case)[:, :, 0]
    return compare(first, got, 2 * run.expected(case)[1], "the first query's output")


PERFORMER_ATTENTION = Spec(
    name="performer_attention",
    statement="performer_attention(query, key, value, directions, *, causal, key_mask, scale, chunk_size): the weight "
    "of a key is the sum over the directions w of exp(w q - |q|^2 / 2) exp(w k - |k|^2 / 2), divided by that sum over "
    "all keys that the query reads; q and k are the query and the key times the root of the scale, 1 / sqrt(d) by "
    "default. key_mask: True for real tokens. causal: a query reads the keys up to its own; chunk_size changes no "
    "number. A query without keys gets 0. query (B, H, L, d), key (B, H, S, d), value (B, H, S, dv), directions "
    "(m, d), key_mask (B, S) -> (B, H, L, dv)",
    required=NAMES,
    reference=reference.performer_attention,
    baseline=mutants.PerformerFormula(),
    cases=_cases,
    combine=_by_chance,
    num_drawn=5,
    checks=(
        Check(
            "weights sum to 1",
            "The output is a weighted mean of the values: divide by the sum of the weights.",
            _sum_to_one,
            when=lambda case: _is_plain(case) and not case.arguments.get("causal"),
        ),
        Check(
            "a query does not depend on later keys",
            "With causal=True the sums of a query run over the keys up to its own.",
            _future,
            needs=("causal",),
            when=lambda case: case.arguments["query"].shape[2] > 1 and not case.is_empty,
        ),
        Check(
            "the first query reads its own key",
            "A causal query reads all keys up to its own, its own included.",
            _own_key,
            needs=("causal",),
            when=lambda case: _is_plain(case) and bool(case.arguments["causal"]),
        ),
        Check(
            "padding is no key",
            "A text in a padded batch gets the outputs that it gets alone: padding is in no sum.",
            _no_key,
            needs=("key_mask",),
            when=lambda case: not case.arguments.get("causal") and not case.is_empty,
        ),
        Check(
            "keys are weighed against each other",
            "A weight is the dot product of the query's and the key's features over the sum of them all.",
            _weighed,
            when=lambda case: _is_plain(case),
        ),
        Check(
            "large queries and keys have their weights, too",
            "Subtract the largest logarithm before the exponential: one per query, one for all keys of a head.",
            _far,
            when=lambda case: _is_plain(case) and case.dtype == torch.float64,
        ),
    ),
    mutants=mistakes_in(mutants, of="performer_attention"),
    chapter=17,
)  # fmt: skip
