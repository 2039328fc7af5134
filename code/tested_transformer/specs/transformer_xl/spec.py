"""The Specs of Transformer-XL: the relative shift, attention by content and distance, the memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ... import reference
from ..checks import any_batch, any_dtype, larger, transposed
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import AGAIN, EQUAL, GRADIENTS, Case, Check, Run, Spec
from ..surroundings import kept
from . import mutants

# --- The relative shift ---------------------------------------------------------------------------


def _shift_case(label: str, rng, batch, length, memory, both, dtype=torch.float64) -> Case:
    keys = memory + length
    columns = keys + length - 1 if both else keys
    numbers = rng.normal(size=(*batch, length, columns))
    return Case(label, {"by_distance": numbers, "num_keys": keys}, dtype)


def _shift_cases(rng: np.random.Generator) -> list[Case]:
    sizes = [
        ("one query, one key", (), 1, 0, False),
        ("two queries", (), 2, 0, False),
        ("a memory of two", (), 2, 2, False),
        ("a memory longer than the segment", (2,), 3, 5, False),
        ("a memory shorter than the segment", (2, 3), 5, 2, False),
        ("both directions", (), 3, 0, True),
        ("both directions, and a memory", (2, 3), 3, 4, True),
        ("both directions, one query", (2,), 1, 4, True),
        ("no sequences", (0,), 3, 2, False),
    ]
    made = [_shift_case(label, rng, *rest) for label, *rest in sizes]
    made.append(_shift_case("float32", rng, (2,), 4, 3, False, torch.float32))
    return made


def _shift_by_chance(draw: Draw) -> Case:
    sizes = (any_batch(draw), draw.one_of(2, 1, 3, 6), draw.one_of(0, 1, 2, 7))
    return _shift_case(
        "sizes by chance", draw.numbers, *sizes, draw.one_of(False, True), any_dtype(draw)
    )


def _sizes(case: Case) -> tuple[int, int, int]:
    """L, R and S."""
    return *case.arguments["by_distance"].shape[-2:], case.arguments["num_keys"]


def _known(case: Case) -> np.ndarray:
    """Which pairs have a column."""
    length, columns, keys = _sizes(case)
    steps = np.arange(length)[:, None] + keys - length - np.arange(keys)
    return keys - 1 - steps < columns


def _own_row(run: Run, case: Case) -> Problem | None:
    """Where row i holds i + 1 throughout, the output has nothing but i + 1 in row i, and 0."""
    numbers = np.ones_like(case.arguments["by_distance"])
    rows = np.arange(1.0, numbers.shape[-2] + 1)[:, None]
    got = run.value(case, by_distance=numbers * rows)
    others = np.argwhere((got != rows) & (got != 0))
    if not len(others):
        return None
    place = tuple(others[0].tolist())
    return Problem(
        f"a score of query {place[-2]}, or 0",
        f"one of query {int(got[place]) - 1} at {list(place)}",
    )


def _own_distance(run: Run, case: Case) -> Problem | None:
    """Where every column holds its distance, entry (i, j) is the distance of key j from query i."""
    length, columns, keys = _sizes(case)
    numbers = np.ones_like(case.arguments["by_distance"]) * (keys - 1.0 - np.arange(columns))
    steps = np.arange(length)[:, None] + keys - length - np.arange(keys)
    got = run.value(case, by_distance=numbers)
    what = "where every column holds its distance, the output"
    return compare(np.broadcast_to(steps * _known(case), got.shape).astype(float), got, 0.0, what)


RELATIVE_SHIFT = Spec(
    name="relative_shift",
    statement="relative_shift(by_distance, num_keys): by_distance (*batch, L, R) has a score for each query and each "
    "distance; column r belongs to distance S - 1 - r, where S = num_keys, and R is S + L - 1, or S, where the "
    "distances end at 0. The answer (*batch, L, S) has in row i and column j row i's score of the distance "
    "i + S - L - j, and 0 where there is no such column",
    required=("by_distance", "num_keys"),
    reference=reference.relative_shift,
    baseline=mutants.ShiftFormula(),
    cases=_shift_cases,
    combine=_shift_by_chance,
    num_drawn=5,
    checks=(
        Check(
            "a query reads its own row",
            "Row i of the answer has scores of query i alone; nothing slips in from another row.",
            _own_row,
            when=lambda case: not case.is_empty,
        ),
        Check(
            "the distance of a pair is its own",
            "The last query is at the last key: query i is at key i + S - L, and the keys before are memory.",
            _own_distance,
            when=lambda case: not case.is_empty,
        ),
    ),
    mutants=mistakes_in(mutants, of="relative_shift"),
    chapter=18,
)

# --- Its attention --------------------------------------------------------------------------------

NAMES = ("query", "key", "value", "position_key", "content_bias", "position_bias")


def _arguments(rng, batch, heads, length, memory, widths, both) -> dict[str, Any]:
    keys = memory + length
    rows = keys + length - 1 if both else keys
    shapes = (
        (batch, heads, length, widths[0]), (batch, heads, keys, widths[0]),
        (batch, heads, keys, widths[1]), (heads, rows, widths[0]), (heads, widths[0]), (heads, widths[0]),
    )  # fmt: skip
    made = {n: rng.normal(size=shape) for n, shape in zip(NAMES, shapes, strict=True)}
    return made if both else made | {"causal": True}


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, both=False, dtype=torch.float64, **options) -> Case:
        return Case(label, _arguments(rng, *sizes, both) | options, dtype)

    seen = rng.random((2, 1, 1, 4)) < 0.6
    return [
        case("one token, one head", 1, 1, 1, 0, (2, 3)),
        case("two tokens, two heads", 1, 2, 2, 0, (3, 2)),
        case("a memory of two", 1, 2, 2, 2, (3, 2)),
        case("a memory longer than the segment", 2, 2, 2, 3, (3, 2)),
        case("both directions", 2, 2, 3, 0, (3, 4), both=True),
        case("both directions, and a memory", 1, 2, 3, 2, (3, 2), both=True),
        case("both directions, causal", 1, 2, 3, 1, (3, 2), both=True, causal=True),
        case("a mask", 2, 2, 2, 2, (3, 2), mask=seen),
        case("a window of three, and a memory of two", 1, 2, 3, 2, (3, 2), window=3),
        case("a window of two, and a memory of three", 1, 2, 3, 3, (2, 3), window=2),
        larger(case("float32", 2, 2, 3, 2, (3, 2), dtype=torch.float32), key=100.0),
        Case(
            "all options at once, transposed tensors",
            transposed(_arguments(rng, 2, 2, 2, 2, (3, 2), False))
            | {"window": 3, "mask": np.arange(32).reshape(2, 2, 2, 4) % 3 > 0},
        ),
        case("no sequences", 0, 2, 3, 2, (4, 3)),
    ]


def _by_chance(draw: Draw) -> Case:
    sizes = (
        draw.one_of(1, 2), draw.one_of(2, 1), draw.one_of(3, 1, 2, 4), draw.one_of(0, 1, 3),
        (draw.one_of(3, 1, 4), draw.one_of(2, 1, 3)),
    )  # fmt: skip
    arguments = _arguments(draw.numbers, *sizes, draw.one_of(False, True))
    if draw.one_of(False, True):
        arguments["window"] = draw.one_of(2, 3, 9)
    return Case("sizes by chance", arguments, any_dtype(draw))


def _has_choice(case: Case) -> bool:
    """Whether some query attends to several keys."""
    a = case.arguments
    return not case.is_empty and a["key"].shape[2] > 1 and "mask" not in a


def _biases(run: Run, case: Case) -> Problem | None:
    """Without position keys v is nothing, and u counts; without keys u is nothing, and v counts."""
    pairs = (
        ("position_key", "content_bias", "position_bias"),
        ("key", "position_bias", "content_bias"),
    )
    for without, counts, idle in pairs:
        zero = {without: np.zeros_like(case.arguments[without])}
        other = zero | {idle: case.arguments[idle] + 1.0}
        slack = 2 * run.expected(case, **zero)[1]
        before, after = run.value(case, **zero), run.value(case, **other)
        when = f"`{without}` is 0 and `{idle}` changes"
        if problem := unchanged(before, after, slack, when):
            return problem
        moved = zero | {counts: 3.0 - case.arguments[counts]}
        expected, slack = run.expected(case, **moved)
        what = f"with `{without}` = 0 and another `{counts}`, the output"
        if problem := compare(expected, run.value(case, **moved), slack, what):
            return problem
    return None


def _scaled(run: Run, case: Case) -> Problem | None:
    """Both terms with four times as many features, in which they repeat: the scores double."""
    wide = ("query", "key", "position_key", "content_bias", "position_bias")
    repeated = {n: np.tile(case.arguments[n], 4) for n in wide}
    larger = {n: case.arguments[n] * 2.0**0.5 for n in wide}
    expected = run.value(case, **larger)
    slack = run.expected(case, **larger)[1] + run.expected(case, **repeated)[1]
    what = "with each feature four times, where scores double, the output"
    return compare(expected, run.value(case, **repeated), slack, what)


def _keys_seen(run: Run, case: Case, place: int) -> Problem | None:
    """Change the value of a key that query 0 attends to: its output must change."""
    value = case.arguments["value"].copy()
    value[:, :, place] += 1.0
    before, after = run.value(case), run.value(case, value=value)
    slack = run.expected(case)[1] + run.expected(case, value=value)[1]
    if np.abs(after - before)[:, :, 0].max() > slack:
        return None
    return Problem(f"another output of query 0 when value {place} changes", "the same output")


def _first_seen(case: Case) -> int:
    """The oldest key that query 0 attends to."""
    window = case.arguments.get("window")
    return 0 if window is None else max(_memory(case) - window + 1, 0)


def _memory(case: Case) -> int:
    """How many keys come before those of the segment."""
    return case.arguments["key"].shape[2] - case.arguments["query"].shape[2]


def _future(run: Run, case: Case) -> Problem | None:
    changed = {n: case.arguments[n].copy() for n in ("key", "value")}
    for each in changed.values():
        each[:, :, -1] += 1.0
    before, after = run.value(case)[:, :, :-1], run.value(case, **changed)[:, :, :-1]
    slack = run.expected(case)[1] + run.expected(case, **changed)[1]
    return unchanged(before, after, slack, "the last key changes", "an earlier output")


def _is_small(case: Case) -> bool:
    """Whether there is one sequence, and no window: gradients take long."""
    a = case.arguments
    return not case.is_empty and a["query"].shape[0] == 1 and "window" not in a


TRANSFORMER_XL_ATTENTION = Spec(
    name="transformer_xl_attention",
    statement="transformer_xl_attention(query, key, value, position_key, content_bias, position_bias, *, mask, causal, "
    "window): attention with scores ((q_i + content_bias) . k_j + (q_i + position_bias) . p_ij) / sqrt(d), where p_ij is "
    "the row of position_key for the distance i + S - L - j; its rows go from distance S - 1 to -(L - 1), or to 0 in a "
    "causal call. query (B, H, L, d), key (B, H, S, d), value (B, H, S, dv), position_key (H, R, d), biases (H, d) -> "
    "(B, H, L, dv). mask: True where query i may attend to key j, to be broadcast to (B, H, L, S). causal: no later "
    "keys; window: the keys less than so many tokens away; the last query is at the last key",
    required=NAMES,
    reference=reference.transformer_xl_attention,
    baseline=mutants.AttentionFormula(),
    cases=_cases,
    combine=_by_chance,
    num_drawn=2,
    checks=(
        Check(
            "a token does not depend on later ones",
            "In a causal call a query attends to keys up to its own position, that of key i + S - L.",
            _future,
            when=lambda case: "causal" in case.arguments and _has_choice(case)
            and case.arguments["query"].shape[2] > 1,
        ),
        Check(
            "a query attends to its own key",
            "The keys of the memory come first: query i is at key i + S - L.",
            lambda run, case: _keys_seen(run, case, _memory(case)),
            when=_has_choice,
        ),
        Check(
            "a query reaches as far back as it should",
            "To the first slot of the memory, or in a window of w to the key w - 1 before its own.",
            lambda run, case: _keys_seen(run, case, _first_seen(case)),
            when=_has_choice,
        ),
        Check(
            "both terms are scaled",
            "The sum of both terms is divided by sqrt(d).",
            _scaled,
            when=_has_choice,
        ),
        Check(
            "each term has a bias of its own",
            "content_bias is added to the query of the content term, position_bias to that of the position term.",
            _biases,
            when=lambda case: _has_choice(case) and _is_small(case),
        ),
    ),
    last=(EQUAL, replace(GRADIENTS, when=_is_small), AGAIN),
    mutants=mistakes_in(mutants, of="transformer_xl_attention"),
    chapter=18,
)  # fmt: skip

# --- Its memory -----------------------------------------------------------------------------------


def _memory_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, batch, old, new, memory_length, dtype=torch.float64) -> Case:
        memory = None if old is None else rng.normal(size=(batch, old, 3))
        hidden = rng.normal(size=(batch, new, 3))
        return Case(
            label, {"memory": memory, "hidden": hidden, "memory_length": memory_length}, dtype
        )

    return [
        case("the first segment, longer than the memory", 1, None, 3, 2),
        case("the first segment, shorter than the memory", 2, None, 2, 5),
        case("a memory of one, a token", 1, 1, 1, 1),
        case("a longer segment", 2, 2, 5, 3),
        case("a shorter segment", 2, 4, 2, 4),
        case("a memory that is not full", 2, 2, 3, 7),
        case("no memory", 2, None, 3, 0),
        case("float32", 2, 3, 2, 4, torch.float32),
        case("an empty segment", 1, 3, 0, 3),
    ]


def _newest(run: Run, case: Case) -> Problem | None:
    hidden, got = case.arguments["hidden"], run.value(case)
    what = "the last state of the memory"
    return compare(run.expected(case)[0][:, -1], got[:, -1], 0.0, what) if hidden.size else None


def _no_gradient(run: Run, case: Case) -> Problem | None:
    given = case.tensors()
    given["hidden"].requires_grad_()
    with kept():
        answer = run._called(run.built(given), given)
    return Problem("an answer without a gradient", "one with") if answer.requires_grad else None


def _memory_size(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    states = a["hidden"].shape[1] + (0 if a["memory"] is None else a["memory"].shape[1])
    expected, got = min(states, a["memory_length"]), run.value(case).shape[1]
    return None if got == expected else Problem(f"{expected} states", f"{got}")


EXTEND_MEMORY = Spec(
    name="extend_memory",
    statement="extend_memory(memory, hidden, memory_length): the last memory_length states of memory (B, M, D), which is "
    "None before the first segment, and of hidden (B, L, D), in their order; fewer where there are fewer. No "
    "gradient goes back through the answer",
    required=("memory", "hidden", "memory_length"),
    reference=reference.extend_memory,
    baseline=mutants.MemoryFormula(),
    cases=_memory_cases,
    usual=(),
    differentiable=False,
    checks=(
        Check(
            "the memory is as long as it should be",
            "memory_length states, or all if there are fewer; a short segment does not push all of the old ones out.",
            _memory_size,
        ),
        Check(
            "the newest state comes last",
            "The memory ends with the last token of the segment.",
            _newest,
            when=lambda case: case.arguments["memory_length"] > 0,
        ),
        Check(
            "no gradient goes back",
            "What is remembered is detached: a segment's graph ends with it.",
            _no_gradient,
        ),
    ),
    mutants=mistakes_in(mutants, of="extend_memory"),
    chapter=18,
)  # fmt: skip
