"""The Spec of T5's relative positions: a bias for each bucket of distances."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from ... import reference
from ..checks import varied
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants
from .mutants import T5Formula

BUCKETS = ((32, 128), (8, 20), (12, 40), (4, 8), (64, 256), (20, 100))  # and their max_distance


def _build(candidate: Any, arguments: dict[str, Any]) -> Any:
    """A function of positions and a table; of a scheme's class, its `bias` with that table."""
    if not (isinstance(candidate, type) and issubclass(candidate, nn.Module)):
        return candidate

    def bias(query_ids, key_ids, table, bidirectional=True, max_distance=128):
        num_buckets, num_heads = table.shape
        options = {"max_distance": max_distance, "bidirectional": bidirectional}
        scheme = candidate(num_heads, num_buckets=num_buckets, **options)
        del scheme.table
        scheme.table = table  # no parameter, so that the case's own table gets the gradient
        return scheme.bias(query_ids, key_ids)

    return bias


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, query_ids, key_ids, buckets, heads, dtype=torch.float64, **options) -> Case:
        num_buckets, max_distance = buckets
        table = rng.standard_normal((num_buckets, heads))
        arguments = {"query_ids": np.asarray(query_ids), "key_ids": np.asarray(key_ids)}
        given = {"table": table, "max_distance": max_distance, **options}
        return Case(label, arguments | given, dtype)

    def heads_first(label) -> Case:
        """The same numbers, with those of a head side by side in memory."""
        own = case(label, range(3), range(5), (8, 20), 3)
        return replace(own, arguments=own.arguments | {"table": own.arguments["table"].copy("F")})

    padded = np.maximum(np.arange(9) - np.array([[0], [2], [5]]), 0)
    far = int(rng.integers(10_000, 20_000))
    return [
        case("three tokens", range(3), range(3), (8, 20), 2),
        case("a causal decoder", range(6), range(6), (8, 20), 3, bidirectional=False),
        case("two new tokens after thirty", [30, 31], range(2, 32, 3), (8, 20), 2, bidirectional=False),
        case("the released sizes", [0, 99, 200], range(0, 300, 23), (32, 128), 3),
        case("causal, the released sizes", [200, 290], range(0, 300, 19), (32, 128), 2, bidirectional=False),
        heads_first("a table stored heads first"),
        case("float32", range(0, 60, 17), range(0, 60, 7), (12, 40), 4, torch.float32),
        case("a batch with positions of its own", padded, padded, (8, 20), 2),
        case("a batch after a cache", padded[:2, 6:], padded[:2], (12, 40), 3, bidirectional=False),
        case("far from the start", range(far, far + 3), range(far - 25, far + 30, 6), (8, 20), 2),
        case("one head", [7], range(0, 20, 3), (4, 8), 1),
        case("no keys", range(2), np.zeros(0, dtype=np.int64), (8, 20), 2),
        case("one query for a batch of keys", [8], padded, (8, 20), 3),
    ]  # fmt: skip


def _by_chance(draw: Draw) -> Case:
    num_buckets, max_distance = draw.one_of(*BUCKETS)
    batch, reach = draw.one_of((), (1,), (3,)), draw.one_of(9, 50, 400)
    arguments = {
        "query_ids": draw.numbers.integers(0, reach, (*batch, draw.one_of(3, 1))),
        "key_ids": draw.numbers.integers(0, reach, (*batch, draw.one_of(7, 1))),
        "table": draw.numbers.standard_normal((num_buckets, draw.one_of(4, 1, 2))),
        "max_distance": max_distance,
        "bidirectional": draw.one_of(True, False),
    }
    return Case("sizes by chance", arguments, draw.one_of(torch.float64, torch.float32))


def _rows(case: Case) -> tuple[np.ndarray, int, bool]:
    """The table, the buckets of one side, and whether there are two sides."""
    table, both = case.arguments["table"], case.arguments.get("bidirectional", True)
    return table, len(table) // 2 if both else len(table), both


def _at(run: Run, case: Case, distances: list[int]) -> np.ndarray:
    """(keys, H): what one query adds to keys at these distances before it, or after it if negative."""
    far = max(map(abs, distances))
    line = {"query_ids": np.array([far]), "key_ids": far - np.array(distances)}
    return run.value(varied(case, f"a line of distances {distances}", **line))[0, :, 0].T


def _last_row(run: Run, case: Case) -> Problem | None:
    last = varied(case, "the last query", query_ids=case.arguments["query_ids"][..., -1:])
    whole, alone, slack = run.value(case)[..., -1:, :], run.value(last), run.expected(case)[1]
    return unchanged(whole, alone, slack, "the other queries are left out", "the last query's row")


def _directions(run: Run, case: Case) -> Problem | None:
    table, side, both = _rows(case)
    wanted = table[[0, 1, side + 1 if both else 0]]
    got, slack = _at(run, case, [0, 1, -1]), run.expected(case)[1]
    return compare(wanted, got, slack, "the rows of itself, the previous and the next token")


def _near(run: Run, case: Case) -> Problem | None:
    table, side, _ = _rows(case)
    got, slack = _at(run, case, list(range(side // 2))), run.expected(case)[1]
    return compare(table[: side // 2], got, slack, "the rows of the nearest tokens")


def _far(run: Run, case: Case) -> Problem | None:
    table, side, _ = _rows(case)
    end = case.arguments["max_distance"]
    wanted = np.stack([table[side - 1]] * 4)
    got = _at(run, case, [end, end + 1, 4 * end, 90 * end])
    return compare(wanted, got, run.expected(case)[1], "the rows from max_distance on")


T5_BIAS = Spec(
    name="t5_bias",
    statement="""t5_bias(query_ids, key_ids, table, *, bidirectional=True, max_distance=128): the row of `table`
(num_buckets, H) for the bucket of each pair. With n buckets, distances 0 ... n/2 - 1 back from the query have one each, the
next n/2 grow by equal ratios up to max_distance, and the last has all beyond. bidirectional: n is half of the
buckets, the other half is for keys after the query; otherwise those count as distance 0. query_ids (L) or (B, L), key_ids (S)
or (B, S), integers -> (B, H, L, S), B = 1 without a batch. Or a module class(num_heads, *, num_buckets, max_distance, bidirectional)
with a parameter `table` and bias(query_ids, key_ids).""",
    required=("query_ids", "key_ids", "table"),
    reference=reference.t5_bias,
    baseline=T5Formula(),
    cases=_cases,
    combine=_by_chance,
    num_drawn=4,
    checks=(
        Check(
            "the last query alone has the last row",
            "A query's bias depends on its own position, however many queries come with it.",
            _last_row,
            when=lambda case: case.arguments["query_ids"].shape[-1] > 1,
        ),
        Check(
            "past and future are told apart",
            "The token before the query is in bucket 1, the one after it in the other half, or in bucket 0 when causal.",
            _directions,
        ),
        Check(
            "a bucket for each near distance",
            "The first half of the buckets, of one direction, are distances 0, 1, 2 and so on.",
            _near,
        ),
        Check(
            "far distances share the last bucket",
            "From max_distance on, every distance is in the last bucket of its direction.",
            _far,
        ),
    ),
    mutants=mistakes_in(mutants),
    build=_build,
    chapter=18,
)
