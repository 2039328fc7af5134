"""The Specs of chapter 15: a softmax that sees its scores in tiles, and attention built on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ... import reference
from ..checks import DTYPES, largest, tolerance, transposed
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..rounding import is_view
from ..spec import AGAIN, EQUAL, GRADIENTS, Case, Check, Run, Spec
from . import mutants

PAIR = "-> (output (*batch, L, dv), log-sum-exp (*batch, L)), zeros and +inf for a row that sees nothing"


def joined(answer: Any, arguments: dict[str, Any]) -> Tensor:
    """(output, log-sum-exp) as one array, the log-sum-exp as its last column."""
    output, lse = answer
    return torch.cat([output, lse[..., None]], dim=-1)


def _slack(run: Run, case: Case) -> float:
    return 2 * run.expected(case)[1]


class Watched(TorchDispatchMode):
    """The sizes of the largest array of numbers that an operation reads or returns.

    Views and copies do not count: they compute nothing.
    """

    def __init__(self, too_large: Callable[[torch.Size], bool]) -> None:
        super().__init__()
        self.too_large, self.found = too_large, None

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        answer = function(*args, **(kwargs or {}))
        if function.overloadpacket not in COPIES and not is_view(function):
            for tensor in (*args, answer):
                counts = isinstance(tensor, Tensor) and tensor.is_floating_point()
                if counts and self.too_large(tensor.shape):
                    self.found = tuple(tensor.shape)
        return answer


aten = torch.ops.aten
COPIES = {aten.split, aten.split_with_sizes, aten.unbind, aten.clone, aten._to_copy, aten.copy_, aten.constant_pad_nd, aten.cat, aten.stack,
          aten.slice_backward, aten.new_zeros, aten.new_full, aten.new_empty, aten.new_ones,
          aten.empty_like, aten.zeros_like, aten.ones_like, aten.full_like}  # fmt: skip


def _within(too_large: Callable[[Case], Callable[[torch.Size], bool]]):
    """The test that no array is too large."""

    def test(run: Run, case: Case) -> Problem | None:
        with Watched(too_large(case)) as watched:
            run.answer(case.tensors())
        tile = case.arguments["tile"]
        expected = f"arithmetic on tiles of at most {tile} keys"
        return Problem(expected, f"shape {watched.found}") if watched.found else None

    return test


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
        after = run.value(case, tile=tile)
        if problem := unchanged(expected, after, _slack(run, case), f"tile is {tile}, not 1"):
            return problem
    return None


def _empty(run: Run, case: Case) -> Problem | None:
    expected = run.expected(case)[0]
    rows = _empty_rows(expected)
    return compare(expected[rows], run.value(case)[rows], 0.0)


def _has_empty(case: Case) -> bool:
    if "scores" in case.arguments:
        return bool(np.isneginf(case.arguments["scores"]).all(-1).any())
    a = case.arguments
    return not a["key"].shape[-2] or (a["causal"] and a["query"].shape[-2] > a["key"].shape[-2])


EMPTY_ROW = Check(
    "a fully masked row is zero",
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
    empty = (scores == -math.inf).all(-1)
    scores = scores.masked_fill(empty[..., None], 0.0)  # the logsumexp of -inf alone has no slope
    lse = scores.logsumexp(-1)
    weights = torch.exp(scores - lse[..., None]).masked_fill(empty[..., None], 0.0)
    return weights @ value, lse.masked_fill(empty, math.inf)


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
        case("a fully masked row", (3,), 6, 2, hide=np.s_[2]),
        case("float32", (3,), 9, 4, dtype=torch.float32),
        case("bfloat16", (3,), 9, 4, dtype=torch.bfloat16),
        case("scores in the thousands, float32", (3,), 7, 2, spread=2000.0, dtype=torch.float32),
        case("all far above 10,000", (2,), 5, 2, shift=1e5),
        case("many keys", (2,), 600, 4, 2),
    ]


def _drawn_rows(draw: Draw) -> Case:
    """A case by chance: axes, tile, masked keys and rows, size of the scores, dtype and layout."""
    rows = [draw.one_of(1, 2, 4) for _ in range(draw.one_of(1, 2, 3))]
    keys, width = draw.one_of(1, 3, 8), draw.one_of(1, 2, 5)
    scores = draw.one_of(1.0, 50.0, 2000.0) * draw.numbers.normal(size=(*rows, keys))
    hidden = draw.one_of(0.0, 0.3, 0.8)
    scores[draw.numbers.random(scores.shape) < hidden] = -np.inf
    arguments = {"scores": scores, "value": draw.numbers.normal(size=(*rows[:-1], keys, width))}
    arguments = transposed(arguments) if draw.one_of(False, True) else arguments
    arguments["tile"] = draw.one_of(1, 2, 3, 9)
    return Case("drawn", arguments, draw.one_of(*DTYPES[:3]))


def _more_keys_than_a_tile(case: Case) -> Callable[[torch.Size], bool]:
    """More numbers than `tile` keys have scores, or products of a weight and a value."""
    *_, rows, _ = case.arguments["scores"].shape
    _, width = case.arguments["value"].shape
    return lambda shape: shape.numel() > rows * width * case.arguments["tile"]


def _shifted(run: Run, case: Case) -> Problem | None:
    """Adding 3 to all scores adds 3 to the log-sum-exp and leaves the output."""
    scores = case.arguments["scores"] + 3.0
    moved = run.value(case, scores=scores)
    back = moved - np.eye(moved.shape[-1])[-1] * 3.0
    far = run.expected(case)[1] + tolerance(run, case, moved, scores=scores)
    when = "3 is added to the scores and taken from the log-sum-exp"
    return unchanged(run.value(case), back, far, when)


def _turned(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    turned = run.value(
        case, scores=a["scores"][..., ::-1].copy(), value=a["value"][..., ::-1, :].copy()
    )
    return unchanged(run.value(case), turned, _slack(run, case), "the keys are reversed")


def _largest(case: Case) -> float:
    scores = case.arguments["scores"]
    return float(np.abs(scores).max(initial=0.0, where=np.isfinite(scores)))


def _top(case: Case) -> float:
    return float(case.arguments["scores"].max(initial=-np.inf))


def _gentle(case: Case) -> bool:
    shown = np.isfinite(case.arguments["scores"]).all() and case.arguments["scores"].size > 0
    few = case.arguments["scores"].shape[-1] < 512 and case.label != "drawn"
    return bool(few and _largest(case) < 100 and shown and case.dtype == torch.float64)


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
    after = run.value(case, value=loud)[~rows]
    return unchanged(found[~rows], after, _slack(run, case), "masked values change")


ONLINE_CHECKS = (
    Check(
        "no overflow",
        "exp(710) is too large for float64. Keep the largest score so far, and subtract it.",
        _output_finite,
        when=lambda case: _largest(case) > 100 and not _has_empty(case) and _top(case) > 0,
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
            run.expected(case)[1],
            "sums of the weights",
        ),
        when=lambda case: _largest(case) > 100 and _top(case) < 0 and not _has_empty(case),
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

ONLINE_CHECKS += (
    Check(
        "at most `tile` keys at a time",
        "More keys than a tile holds are read in one operation: a row may be too long to be there at once.",
        _within(_more_keys_than_a_tile),
        when=lambda case: case.label == "many keys",
    ),
)


def _listed(check: Check) -> Check:
    """The same check on the listed cases: the drawn ones are for equality and gradients."""
    return replace(check, when=lambda case: case.label != "drawn" and check.when(case))


def _long(case: Case) -> bool:
    return case.arguments["value"].shape[-2] > 512


def many_terms(case: Case) -> float:
    """A sum of many terms rounds once per term where the plain formula's one operation rounds once."""
    value = case.arguments["value"]
    return len(value) * torch.finfo(case.dtype).eps * largest(value) * _long(case)


# Without keys nothing depends on anything: there may be no gradient.
SLOPED = replace(GRADIENTS, when=lambda case: not case.is_empty and not _long(case))
LAST = (EQUAL, SLOPED, AGAIN)

ONLINE_SOFTMAX = Spec(
    name="online_softmax",
    statement="online_softmax(scores, value, tile): softmax(scores) value, at most `tile` keys at a time. "
    f"scores (*batch, L, S), value (*batch, S, dv) {PAIR}",
    required=("scores", "value", "tile"),
    reference=reference.online_softmax,
    baseline=plain_rows,
    cases=_row_cases,
    combine=_drawn_rows,
    checks=tuple(map(_listed, ONLINE_CHECKS)),
    last=LAST,
    slack=many_terms,
    num_drawn=8,
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
        case("scores in the thousands, float32", (4, 4), 7, 3, spread=40.0, dtype=torch.float32),
        case("no keys", (3, 2), 0, 2),
        case("many keys", (10, 2), 12, 3, width=2),
        case("more keys than 512", (2, 2), 600, 64, causal=True, width=2),
    ]


def _drawn_attention(draw: Draw) -> Case:
    """A case by chance: axes, tile, order, size of the scores, dtype and layout."""
    batch = draw.one_of((), (2,), (2, 3), (1, 2))
    length, keys, d = draw.one_of(1, 3, 6), draw.one_of(1, 4, 7), draw.one_of(1, 2, 5)
    spread = draw.one_of(1.0, 5.0, 40.0)
    arguments = {
        "query": spread * draw.numbers.normal(size=(*batch, length, d)),
        "key": spread * draw.numbers.normal(size=(*batch, keys, d)),
        "value": draw.numbers.normal(size=(*batch, keys, draw.one_of(1, 3))),
    }
    arguments = transposed(arguments) if draw.one_of(False, True) else arguments
    arguments |= {"tile": draw.one_of(1, 2, 3, 9), "causal": draw.one_of(False, True)}
    return Case("drawn", arguments, draw.one_of(*DTYPES[:3]))


def _more_than_a_tile(case: Case) -> Callable[[torch.Size], bool]:
    """Scores of more than tile x tile pairs; what has d features or dv for each token is no score."""
    tile, d = case.arguments["tile"], case.arguments["query"].shape[-1]

    def too_large(shape: torch.Size) -> bool:
        return len(shape) > 1 and min(shape[-2:]) > d and shape.numel() > tile**2

    return too_large


def _calm(case: Case) -> bool:
    """Listed, in float64, and short: every weight is above 0."""
    if case.is_empty or case.label == "drawn" or case.arguments["key"].shape[-2] > 512:
        return False
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
    if moved > _slack(run, case):
        return None
    return Problem("another answer when a query's last number changes", "the same")


TILED_CHECKS = (
    Check(
        "no overflow",
        "Keep the largest score so far, and subtract it before the exponential.",
        _output_finite,
        when=lambda case: (
            bool(np.abs(case.arguments["query"]).max() >= 10) and not _has_empty(case)
        ),
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
    Check(
        "at most tile x tile scores",
        "More scores than those of one tile are there at once: their memory is what tiles save.",
        _within(_more_than_a_tile),
        when=lambda case: case.label == "many keys",
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
    combine=_drawn_attention,
    checks=tuple(map(_listed, TILED_CHECKS)),
    last=LAST,
    slack=many_terms,
    num_drawn=8,
    mutants=mistakes_in(mutants, of="tiled_attention"),
    read=joined,
    chapter=15,
)
