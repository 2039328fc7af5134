"""The Specs of chapter 15: a softmax that sees its scores in tiles, and attention built on it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import reference
from ..compare import Problem, compare
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants

PAIR = "-> (output (*batch, L, dv), log-sum-exp (*batch, L)), zeros and +inf for a row that sees nothing"


def joined(answer: Any, arguments: dict[str, Any]) -> Tensor:
    """(output, log-sum-exp) as one array, the log-sum-exp as its last column."""
    output, lse = answer
    return torch.cat([output, lse[..., None]], dim=-1)


def _slack(run: Run, case: Case) -> float:
    return 2 * run.expected(case)[1]


def _output_finite(run: Run, case: Case) -> Problem | None:
    found = run.value(case)
    if np.isfinite(found).all():
        return None
    return Problem("finite numbers", f"{np.isnan(found).sum()} NaN, {np.isinf(found).sum()} inf")


def _empty_rows(expected: np.ndarray) -> np.ndarray:
    return np.isposinf(expected[..., -1])


def _tile_sizes(run: Run, case: Case) -> Problem | None:
    """One key at a time gives the same numbers as the case's own tile, two, or all at once."""
    keys, expected = case.arguments["value"].shape[-2], run.value(case, tile=1)
    for tile in (case.arguments["tile"], 2, max(1, keys)):
        problem = compare(expected, run.value(case, tile=tile), _slack(run, case))
        if problem is not None:
            return Problem(f"{problem.expected} (tile 1)", f"{problem.got} (tile {tile})")
    return None


def _empty(run: Run, case: Case) -> Problem | None:
    expected = run.expected(case)[0]
    rows = _empty_rows(expected)
    return compare(expected[rows], run.value(case)[rows], 0.0)


def _has_empty(case: Case) -> bool:
    if "scores" in case.arguments:
        return bool(np.isneginf(case.arguments["scores"]).all(-1).any())
    a = case.arguments
    return a["causal"] and a["query"].shape[-2] > a["key"].shape[-2]


EMPTY_ROW = Check(
    "an empty row is zero",
    "A row that sees nothing has the output 0 and the log-sum-exp +inf.",
    _empty,
    when=_has_empty,
)


# --- The online softmax ---------------------------------------------------------------------------


def plain_rows(scores: Tensor, value: Tensor, tile: int | None = None) -> tuple[Tensor, Tensor]:
    """The baseline: all keys at once, in the scores' own dtype."""
    if not scores.shape[-1]:
        rows = scores.shape[:-1]
        return scores.new_zeros(*rows, value.shape[-1]), scores.new_full(rows, math.inf)
    lse = scores.logsumexp(-1)
    lse = lse.masked_fill(lse == -math.inf, math.inf)
    return torch.exp(scores - lse[..., None]) @ value, lse


def _row_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, rows, keys, tile, width=3, spread=1.0, shift=0.0, hide=None,
             dtype=torch.float64) -> Case:  # fmt: skip
        scores = shift + spread * rng.normal(size=(*rows, keys))
        if hide is not None:
            scores[hide] = -np.inf
        value = rng.normal(size=(*rows[:-1], keys, width))
        return Case(label, {"scores": scores, "value": value, "tile": tile}, dtype)

    five = {"scores": np.array([[1.0, 3.0, 2.0, 5.0, 4.0]]), "value": np.eye(5), "tile": 2}
    falling = {"scores": np.array([[2000.0, 2000.0, 0.0, 1.0]]), "value": np.eye(4), "tile": 2}
    return [
        case("one key", (1,), 1, 1, 2),
        Case("five scores, two at a time", five),
        case("a row, the tile divides it", (1,), 6, 2),
        case("rows, the last tile is short", (3,), 7, 3),
        case("a tile larger than the row", (3,), 4, 9),
        case("no keys", (2,), 0, 2),
        case("a batch of heads", (2, 3, 4), 5, 2),
        case("scores in the thousands", (3,), 7, 2, spread=2000.0),
        Case("a tile far below the one before", falling),
        case("all far above zero", (2,), 5, 2, shift=5000.0),
        case("all far below zero", (2,), 5, 2, shift=-5000.0),
        case("the first tile hidden", (3,), 6, 2, hide=np.s_[1, :2]),
        case("a tile in the middle hidden", (3,), 6, 2, hide=np.s_[1, 2:4]),
        case("an empty row", (3,), 6, 2, hide=np.s_[2]),
        case("float32", (3,), 9, 4, dtype=torch.float32),
        case("bfloat16", (3,), 9, 4, dtype=torch.bfloat16),
    ]


def _shifted(run: Run, case: Case) -> Problem | None:
    """Adding 3 to all scores adds 3 to the log-sum-exp and leaves the output."""
    expected = run.value(case).copy()
    expected[..., -1] += 3.0
    moved = run.value(case, scores=case.arguments["scores"] + 3.0)
    return compare(expected, moved, _slack(run, case) + 1e-14)


def _turned(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    turned = run.value(
        case, scores=a["scores"][..., ::-1].copy(), value=a["value"][..., ::-1, :].copy()
    )
    return compare(run.value(case), turned, _slack(run, case))


def _largest(case: Case) -> float:
    scores = case.arguments["scores"]
    return float(np.abs(scores).max(initial=0.0, where=np.isfinite(scores)))


def _gentle(case: Case) -> bool:
    shown = np.isfinite(case.arguments["scores"]).all() and case.arguments["scores"].size > 0
    return bool(_largest(case) < 100 and shown and case.dtype == torch.float64)


def _hidden(case: Case) -> bool:
    return bool(np.isneginf(case.arguments["scores"]).any()) and not _has_empty(case)


def _hidden_values(run: Run, case: Case) -> Problem | None:
    found = run.value(case)
    if not np.isfinite(found).all():
        return Problem("finite numbers", "NaN or inf")
    hidden = np.isneginf(case.arguments["scores"])
    if hidden.ndim > 2:
        return None
    loud = case.arguments["value"].copy()
    loud[hidden.any(0)] += 1000.0
    rows = ~hidden.any(-1)  # these rows see the loud keys, the others must not
    return compare(found[~rows], run.value(case, value=loud)[~rows], _slack(run, case))


ONLINE_CHECKS = (
    Check(
        "no overflow",
        "exp(710) is too large for float64. Keep the largest score so far, and subtract it.",
        _output_finite,
        when=lambda case: _largest(case) > 100 and case.arguments["scores"].max(initial=0.0) > 0,
    ),
    Check(
        "a row may begin hidden",
        "A tile in which a row sees nothing leaves that row as it was; -inf - (-inf) is NaN.",
        _hidden_values,
        when=_hidden,
    ),
    EMPTY_ROW,
    Check(
        "the tile size changes nothing",
        "One key at a time, two or all at once: up to rounding the answer is the same.",
        _tile_sizes,
        when=_gentle,
    ),
    Check(
        "no row is lost",
        "However low its scores, a row that sees a key has weights that sum to 1.",
        lambda run, case: compare(
            np.ones(case.arguments["scores"].shape[:-1]),
            run.value(case, value=np.ones_like(case.arguments["value"]))[..., 0],
            1e-9,
            "sums of the weights",
        ),
        when=lambda case: _largest(case) > 100 and case.arguments["scores"].max(initial=-1.0) < 0,
    ),
    Check(
        "a shift moves the log-sum-exp alone",
        "Adding 3 to every score adds 3 to log(sum(exp(score))) and leaves the output.",
        _shifted,
        when=_gentle,
    ),
    Check(
        "the order of the keys does not matter",
        "Scores and values turned round together give the same sums.",
        _turned,
        when=_gentle,
    ),
)

ONLINE_SOFTMAX = Spec(
    name="online_softmax",
    statement="online_softmax(scores, value, tile): softmax(scores) value, at most `tile` keys at a time. "
    f"scores (*batch, L, S), value (*batch, S, dv) {PAIR}",
    required=("scores", "value", "tile"),
    reference=reference.online_softmax,
    baseline=plain_rows,
    cases=_row_cases,
    checks=ONLINE_CHECKS,
    mutants=mistakes_in(mutants, of="online_softmax"),
    read=joined,
    chapter=15,
)

# --- Attention in tiles ---------------------------------------------------------------------------


def plain_attention(
    query: Tensor, key: Tensor, value: Tensor, tile: int | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """The baseline: the formula in the query's own dtype."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    length, keys = scores.shape[-2:]
    if causal:
        future = torch.arange(keys) > torch.arange(length)[:, None] + keys - length
        scores = scores.masked_fill(future, -math.inf)
    return plain_rows(scores, value)


def _tiled_cases(rng: np.random.Generator) -> list[Case]:

    def case(
        label, query, keys, tile, causal=False, width=3, spread=1.0, dtype=torch.float64
    ) -> Case:
        arguments = {
            "query": spread * rng.normal(size=query),
            "key": spread * rng.normal(size=(*query[:-2], keys, query[-1])),
            "value": rng.normal(size=(*query[:-2], keys, width)),
            "tile": tile,
            "causal": causal,
        }
        return Case(label, arguments, dtype)

    return [
        case("one query, two keys", (1, 3), 2, 1),
        case("the tile divides both lengths", (4, 3), 6, 2),
        case("short last tiles", (5, 3), 7, 3),
        case("one tile", (3, 4), 5, 8),
        case("a batch", (2, 3, 5, 4), 7, 3),
        case("a larger head", (4, 8), 6, 3),
        case("scores in the thousands", (4, 4), 7, 3, spread=40.0),
        case("causal", (6, 4), 6, 2, causal=True),
        case("causal, short last tiles", (7, 4), 7, 3, causal=True),
        case("causal with a cache", (4, 4), 9, 3, causal=True),
        case("causal, one new query", (1, 4), 7, 3, causal=True),
        case("causal, fewer keys than queries", (7, 4), 4, 2, causal=True),
        case("float32", (2, 6, 4), 9, 4, causal=True, dtype=torch.float32),
        case("bfloat16", (5, 4), 9, 4, dtype=torch.bfloat16),
    ]


def _calm(case: Case) -> bool:
    return case.dtype == torch.float64 and bool(np.abs(case.arguments["query"]).max() < 10)


def _weights(run: Run, case: Case) -> np.ndarray:
    """Attention to the rows of an identity matrix returns the weights."""
    keys = case.arguments["key"].shape[:-1]
    eye = np.broadcast_to(np.eye(keys[-1]), (*keys, keys[-1])).copy()
    return run.value(case, value=eye)[..., :-1]


def _future(run: Run, case: Case) -> Problem | None:
    weights = _weights(run, case)
    for place in np.ndindex(weights.shape):
        *_, i, j = place
        seen = reference.is_allowed(i, j, *weights.shape[-2:], causal=case.arguments["causal"])
        if seen != (weights[place] > 0):
            wanted = "a weight above 0" if seen else "weight 0"
            return Problem(f"{wanted} for query {i}, key {j}", f"{weights[place]:.4g}")
    return None


def _whole_head(run: Run, case: Case) -> Problem | None:
    """The last number of each query and key must count."""
    query = case.arguments["query"].copy()
    query[..., -1] += 1.0
    moved = np.abs(run.value(case, query=query) - run.value(case)).max()
    return (
        None
        if moved > 1e-6
        else Problem("another answer when a query's last number changes", "the same")
    )


TILED_CHECKS = (
    Check(
        "no overflow",
        "Keep the largest score so far, and subtract it before the exponential.",
        _output_finite,
        when=lambda case: bool(np.abs(case.arguments["query"]).max() >= 10),
    ),
    Check(
        "every key is read",
        "Without a mask each query gives each key a weight above 0: short last tiles count too.",
        _future,
        when=lambda case: _calm(case) and not case.arguments["causal"],
    ),
    Check(
        "all of a head is read",
        "The score is a sum over all d numbers of a query and a key, whatever d is.",
        _whole_head,
        when=lambda case: _calm(case) and not case.arguments["causal"],
    ),
    Check(
        "the future stays hidden",
        "Causal, query i sees keys 0 to i + S - L, and every one of them.",
        _future,
        when=lambda case: _calm(case) and case.arguments["causal"],
    ),
    EMPTY_ROW,
    Check(
        "the tile size changes nothing",
        "Tiles of one, of two or of everything: up to rounding the answer is the same.",
        _tile_sizes,
        when=_calm,
    ),
)

TILED_ATTENTION = Spec(
    name="tiled_attention",
    statement="tiled_attention(query, key, value, tile, causal): softmax(query key^T / sqrt(d)) value from "
    "tiles of at most tile x tile scores, causal bottom-right. query (*batch, L, d), key (*batch, S, d), "
    f"value (*batch, S, dv) {PAIR}",
    required=("query", "key", "value", "tile", "causal"),
    reference=reference.tiled_attention,
    baseline=plain_attention,
    cases=_tiled_cases,
    checks=TILED_CHECKS,
    mutants=mistakes_in(mutants, of="tiled_attention"),
    read=joined,
    chapter=15,
)

ONLINE_SPECS = (ONLINE_SOFTMAX, TILED_ATTENTION)
