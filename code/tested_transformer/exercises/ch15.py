"""The exercises of chapter 15."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import reference
from ..specs.checks import largest, stays, varied
from ..specs.compare import Problem, compare
from ..specs.mistakes import mistake, mistakes
from ..specs.online_softmax.spec import TILED_ATTENTION, joined
from ..specs.spec import AGAIN, EQUAL, GRADIENTS, SHAPE, Case, Check, Run, Spec

# --- The running maximum and sum ------------------------------------------------------------------


def _running_reference(scores):
    """After n scores: their maximum, and the sum of exp(score - maximum) over them."""
    rows = []
    for n in range(1, len(scores) + 1):
        top = max(scores[:n])
        rows.append([top, sum(np.exp(s - top) for s in scores[:n])])
    return np.array(rows, dtype=scores.dtype).reshape(len(scores), 2)


def running(scores):
    """The baseline: through logarithms, of which the larger scores leave the fewest digits."""
    best = scores.cummax(0).values
    logs = torch.stack([scores[:n].logsumexp(0) for n in range(1, len(scores) + 1)])
    return torch.stack([best, (logs - best).exp()], 1)


@mistake(
    "a running sum without rescaling",
    rejected_by="equals the reference",
    cause="When the maximum rises, the old sum must shrink by exp(old - new).",
)
def not_rescaled(scores):
    """The sum of exp(score - maximum at that time)."""
    best = scores.cummax(0).values
    return torch.stack([best, (scores - best).exp().cumsum(0)], 1)


@mistake(
    "the maximum of the whole row, before it is known",
    rejected_by="the largest score counts 1",
    cause="The sum after n scores is taken against the maximum of all of them.",
)
def against_the_last_maximum(scores):
    """Every sum against the maximum of the whole row, which is not known yet."""
    best = scores.cummax(0).values
    return torch.stack([best, (scores - scores.max()).exp().cumsum(0)], 1)


@mistake(
    "a running sum of bare exponentials",
    rejected_by="the largest score counts 1",
    cause="exp(score) in place of exp(score - maximum so far).",
)
def without_the_maximum(scores):
    """The sum of exp(score)."""
    return torch.stack([scores.cummax(0).values, scores.exp().cumsum(0)], 1)


@mistake(
    "the newest score for the maximum",
    rejected_by="the maximum never falls",
    cause="best = score in place of max(best, score).",
)
def maximum_of_the_score(scores):
    """The last score is taken for the maximum."""
    return torch.stack([scores, scores.logcumsumexp(0).sub(scores).exp()], 1)


def _running_cases(rng: np.random.Generator) -> list[Case]:
    return [
        Case("one score", {"scores": np.array([2.0])}),
        Case("five scores", {"scores": np.array([1.0, 3.0, 2.0, 5.0, 4.0])}),
        Case("rising", {"scores": np.sort(rng.normal(size=6))}),
        Case("falling", {"scores": np.sort(rng.normal(size=6))[::-1].copy()}),
        Case("scores in the thousands", {"scores": 2000 * rng.normal(size=5)}),
        Case("float32", {"scores": rng.normal(size=7)}, torch.float32),
    ]


def _best(run: Run, case: Case) -> Problem | None:
    expected = np.maximum.accumulate(case.arrays()["scores"]).astype(np.float64)
    return compare(expected, run.value(case)[:, 0], run.expected(case)[1], "maxima")


def _one_at_least(run: Run, case: Case) -> Problem | None:
    """The largest score itself adds exp(0) = 1; every other at most 1."""
    total, most = run.value(case)[:, 1], np.arange(1, len(case.arguments["scores"]) + 1)
    far = run.expected(case)[1]
    if ((total >= 1 - far) & (total <= most + far)).all():
        return None
    return Problem(
        "sums of at least 1 and at most the number of scores so far", str(total.round(4))
    )


RUNNING_SUM = Spec(
    name="ch15.running_sum",
    statement="running_sum(scores): after each score the maximum so far, and the sum of "
    "exp(score - maximum so far) over the scores so far. scores (S) -> (S, 2)",
    required=("scores",),
    reference=_running_reference,
    baseline=running,
    cases=_running_cases,
    checks=(
        Check("the maximum never falls", "The first column is the largest score so far.", _best),
        Check(
            "the largest score counts 1",
            "Against the maximum so far the largest score adds exp(0) = 1, and no score adds more.",
            _one_at_least,
        ),
    ),
    mutants=mistakes(
        not_rescaled, against_the_last_maximum, without_the_maximum, maximum_of_the_score
    ),
    chapter=15,
    points=1,
)  # fmt: skip

# --- Two halves of a row --------------------------------------------------------------------------


def _merge_reference(output_a, lse_a, output_b, lse_b):
    """Row by row: each half weighs exp(its log-sum-exp)."""
    found = np.zeros((*output_a.shape[:-1], output_a.shape[-1] + 1), dtype=output_a.dtype)
    for row in np.ndindex(lse_a.shape):
        logs = np.array([lse_a[row], lse_b[row]])
        weights = reference.softmax(logs)
        found[row][:-1] = weights[0] * output_a[row] + weights[1] * output_b[row]
        found[row][-1] = -np.inf if (logs == -np.inf).all() else reference.log_sum_exp(logs)
    return found


def by_sigmoid(output_a, lse_a, output_b, lse_b):
    """The baseline: the second weight is 1 less the first, which leaves the fewest digits."""
    empty = torch.maximum(lse_a, lse_b) == -math.inf
    a = torch.sigmoid((lse_a - lse_b).masked_fill(empty, 0.0))[..., None]
    return a * output_a + (1 - a) * output_b, torch.logaddexp(lse_a, lse_b)


def merged(output_a, lse_a, output_b, lse_b):
    """Each half's weight by itself."""
    lse = torch.logaddexp(lse_a, lse_b)
    safe = lse.masked_fill(lse == -math.inf, 0.0)
    a, b = (lse_a - safe).exp(), (lse_b - safe).exp()
    return a[..., None] * output_a + b[..., None] * output_b, lse


@mistake(
    "the mean of two halves",
    rejected_by="a half that saw nothing has no say",
    cause="Each half weighs exp(its log-sum-exp), not 1/2.",
)
def the_mean(output_a, lse_a, output_b, lse_b):
    """Both halves weigh the same."""
    return (output_a + output_b) / 2, torch.logaddexp(lse_a, lse_b)


@mistake(
    "two normalized halves added",
    rejected_by="two equal answers stay",
    cause="Each output is a mean already; a mean of means has weights that sum to 1.",
)
def the_sum(output_a, lse_a, output_b, lse_b):
    """Two normalized outputs added."""
    return output_a + output_b, torch.logaddexp(lse_a, lse_b)


@mistake(
    "halves weighed by their logarithms",
    rejected_by="two equal answers stay",
    cause="lse / (lse + lse) in place of exp(lse) / (exp(lse) + exp(lse)).",
)
def weighed_by_logs(output_a, lse_a, output_b, lse_b):
    """The logarithms taken for the sums."""
    share = (lse_a / (lse_a + lse_b))[..., None]
    return share * output_a + (1 - share) * output_b, torch.logaddexp(lse_a, lse_b)


@mistake(
    "log-sum-exps added",
    rejected_by="equals the reference",
    cause="A sum of logarithms is the logarithm of a product; logaddexp adds what is inside.",
)
def logs_added(output_a, lse_a, output_b, lse_b):
    """A sum of logarithms is the logarithm of a product."""
    output, _ = merged(output_a, lse_a, output_b, lse_b)
    return output, lse_a + lse_b


@mistake(
    "bare exponentials of log-sum-exps",
    rejected_by="two equal answers stay",
    cause="exp(lse) overflows; subtract the larger of the two, or the merged one, first.",
)
def bare_exponentials(output_a, lse_a, output_b, lse_b):
    """exp(log-sum-exp), with nothing subtracted."""
    a, b = lse_a.exp(), lse_b.exp()
    output = (a[..., None] * output_a + b[..., None] * output_b) / (a + b)[..., None]
    return output, (a + b).log()


@mistake(
    "NaN where both halves are empty",
    rejected_by="a half that saw nothing has no say",
    cause="exp(lse - merged) with both -inf.",
)
def nothing_seen_twice(output_a, lse_a, output_b, lse_b):
    """-inf - (-inf) where both halves saw nothing."""
    lse = torch.logaddexp(lse_a, lse_b)
    a, b = (lse_a - lse).exp(), (lse_b - lse).exp()
    return a[..., None] * output_a + b[..., None] * output_b, lse


def _merge_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *rows, width=3, spread=1.0, shift=0.0, dtype=torch.float64, **changes) -> Case:
        arguments = {}
        for half in "ab":
            arguments[f"output_{half}"] = rng.normal(size=(*rows, width))
            arguments[f"lse_{half}"] = shift + spread * rng.normal(size=rows)
        return Case(label, arguments | changes, dtype)

    empty = {"lse_a": np.array([1.0, -np.inf]), "output_a": np.array([[3.0, 5.0], [0.0, 0.0]])}
    other = {
        "lse_b": np.array([0.5, -np.inf]),
        "output_b": np.array([[1.0, 2.0], [0.0, 0.0]]),
    }
    return [
        case("one row", 1),
        case("rows", 4),
        case("heads", 2, 3, 4),
        case("as many keys in each half", 2, lse_a=np.zeros(2), lse_b=np.zeros(2)),
        case("large sums", 3, shift=2000.0),
        case("halves far apart", 3, spread=500.0),
        case("a half that saw nothing", 2, width=2, **empty),
        case("the other half saw nothing", 2, width=2, **other),
        case("both saw nothing", 2, width=2, **empty, **other),
        case("float32", 5, dtype=torch.float32),
    ]


def _swapped(run: Run, case: Case) -> Problem | None:
    a = case.arguments
    turned = {
        "output_a": a["output_b"],
        "lse_a": a["lse_b"],
        "output_b": a["output_a"],
        "lse_b": a["lse_a"],
    }
    return stays(run, case, varied(case, "swapped", **turned), "the halves change places")


def _alike(run: Run, case: Case) -> Problem | None:
    """Two halves with the same output: that output, whatever they weigh."""
    alike = varied(case, "alike", output_b=case.arguments["output_a"])
    same, found = alike.arrays()["output_a"], run.value(alike)[..., :-1]
    return compare(same, found, run.expected(alike)[1])


def _one_half(run: Run, case: Case) -> Problem | None:
    found = run.value(case)
    if np.isnan(found).any():
        return Problem("numbers", "NaN")
    a, empty = case.arrays(), _empty_halves(case)
    for saw, other in ("ab", "ba"):
        rows = empty[other] & ~empty[saw]
        got = found[rows][:, :-1]
        if problem := compare(a[f"output_{saw}"][rows], got, run.expected(case)[1]):
            return problem
    return None


def _empty_halves(case: Case) -> dict[str, np.ndarray]:
    """For each half, the rows in which it saw nothing."""
    return {half: np.isneginf(case.arguments[f"lse_{half}"]) for half in "ab"}


def _both_weigh(case: Case) -> bool:
    """Whether each half has a weight: of one that is 1 the gradient is what is left of a difference, and
    where neither half saw anything logaddexp's own gradient is NaN."""
    if not _seen(case):
        return False
    far = np.abs(case.arguments["lse_a"] - case.arguments["lse_b"])
    return bool((far < -np.log(torch.finfo(case.dtype).eps) / 2).all())


def _seen(case: Case) -> bool:
    return not any(rows.any() for rows in _empty_halves(case).values())


MERGE = Spec(
    name="ch15.merge",
    statement="merge(output_a, lse_a, output_b, lse_b) -> (output, lse): attention over two sets of keys "
    "together, from the answer over each. outputs (*batch, L, dv), log-sum-exps (*batch, L); a half that saw "
    "nothing has output 0 and log-sum-exp -inf",
    required=("output_a", "lse_a", "output_b", "lse_b"),
    reference=_merge_reference,
    baseline=by_sigmoid,
    cases=_merge_cases,
    checks=(
        Check(
            "two equal answers stay",
            "If both halves say the same, so do they together: their weights sum to 1.",
            _alike,
            when=_seen,
        ),
        Check(
            "the order of the halves does not matter",
            "Which keys come first is nobody's business: swapping the halves changes nothing.",
            _swapped,
            when=_seen,
        ),
        Check(
            "a half that saw nothing has no say",
            "Its log-sum-exp is -inf: the other half's answer stays. Both empty: 0 and -inf, no NaN.",
            _one_half,
            when=lambda case: not _seen(case),
        ),
    ),
    last=(EQUAL, replace(GRADIENTS, when=_both_weigh), AGAIN),
    mutants=mistakes(
        the_mean, the_sum, weighed_by_logs, logs_added, bare_exponentials, nothing_seen_twice
    ),
    read=joined,
    chapter=15,
    points=2,
)  # fmt: skip

# --- The tiles of a window ------------------------------------------------------------------------


def _kinds_reference(length, keys, tile, window):
    """Look at every pair of every tile."""
    kinds = np.zeros((-(-length // tile), -(-keys // tile)), dtype=np.int64)
    for n, m in np.ndindex(kinds.shape):
        seen = [
            reference.is_allowed(i, j, length, keys, causal=True, window=window)
            for i in range(n * tile, min((n + 1) * tile, length))
            for j in range(m * tile, min((m + 1) * tile, keys))
        ]
        kinds[n, m] = 0 if not any(seen) else 2 if all(seen) else 1
    return kinds


def corners(length, keys, tile, window, *, far=1, shift=None, first=False):
    """The baseline, from the corners of each tile; the options make the mistakes."""
    shift = keys - length if shift is None else shift
    kinds = torch.zeros(-(-length // tile), -(-keys // tile), dtype=torch.int64)
    for n, m in np.ndindex(tuple(kinds.shape)):
        top, bottom = n * tile + shift, min((n + 1) * tile, length) - 1 + shift
        left, right = m * tile, min((m + 1) * tile, keys) - 1
        bottom = top if first else bottom
        if bottom - left < 0 or top - right > window - far:
            continue
        kinds[n, m] = 2 if top - right >= 0 and bottom - left <= window - far else 1
    return kinds


@mistake(
    "a window one key too wide",
    rejected_by="nothing hidden goes unmasked",
    cause="<= window where < window is meant.",
)
def window_one_wider(length, keys, tile, window):
    """A window of w + 1 keys."""
    return corners(length, keys, tile, window, far=0)


@mistake(
    "tiles counted from the top left",
    rejected_by="nothing visible is skipped",
    cause="The place of query i among the keys is i + S - L.",
)
def counted_top_left(length, keys, tile, window):
    """S - L forgotten."""
    return corners(length, keys, tile, window, shift=0)


@mistake(
    "only the first query of a tile is asked",
    rejected_by="nothing visible is skipped",
    cause="The last query of a tile sees farthest ahead, the first farthest back.",
)
def first_query_only(length, keys, tile, window):
    """Only the first query of a tile is asked."""
    return corners(length, keys, tile, window, first=True)


@mistake(
    "the lower end of the window forgotten",
    rejected_by="nothing hidden goes unmasked",
    cause="Only the diagonal is asked; a window has two edges.",
)
def no_lower_end(length, keys, tile, window):
    """Causal alone."""
    return corners(length, keys, tile, length + keys)


def _kind_cases(rng: np.random.Generator) -> list[Case]:
    shapes = [
        ("one tile", 2, 2, 2, 2), ("the tile divides", 8, 8, 2, 4), ("a narrow window", 8, 8, 4, 1),
        ("short last tiles", 7, 9, 3, 4), ("with a cache", 4, 12, 4, 6), ("one new query", 1, 9, 4, 5),
        ("a window wider than all", 6, 6, 2, 20), ("fewer keys than queries", 9, 5, 2, 3),
        ("large tiles", 12, 12, 8, 5),
    ]  # fmt: skip
    names = ("length", "keys", "tile", "window")
    return [Case(label, dict(zip(names, sizes, strict=True))) for label, *sizes in shapes]


def _kind(value: int, wanted: bool, name: str):
    """Entries with this value are where the reference has them."""

    def test(run: Run, case: Case) -> Problem | None:
        expected, found = run.expected(case)[0] == value, run.value(case) == value
        wrong = np.argwhere(expected & ~found if wanted else found & ~expected)
        if not len(wrong):
            return None
        n, m = (int(i) for i in wrong[0])
        right, got = run.expected(case)[0][n, m], run.value(case)[n, m]
        return Problem(f"{right} for tile {n}, {m}", f"{got}")

    return test


WINDOW_TILES = Spec(
    name="ch15.window_tiles",
    statement="window_tiles(length, keys, tile, window): for each tile of a causal window, bottom-right: 0 if "
    "no query of it sees any of its keys, 2 if every query sees all of them, else 1. "
    "Query i sees key j where 0 <= i + S - L - j < window. -> (ceil(L / tile), ceil(S / tile)), whole numbers",
    required=("length", "keys", "tile", "window"),
    reference=_kinds_reference,
    baseline=corners,
    differentiable=False,
    cases=_kind_cases,
    usual=(SHAPE,),
    checks=(
        Check("nothing visible is skipped", "A 0 where some pair is visible: the kernel would lose keys.",
              _kind(0, False, "skipped")),
        Check("nothing hidden goes unmasked", "A 2 where some pair is hidden: the kernel would not mask it.",
              _kind(2, False, "full")),
        Check("nothing is computed in vain", "A 1 or 2 where no pair is visible: right, but slow.",
              _kind(0, True, "skipped")),
    ),
    mutants=mistakes(window_one_wider, counted_top_left, first_query_only, no_lower_end),
    chapter=15,
    points=3,
)  # fmt: skip

# --- What a decoding step costs -------------------------------------------------------------------


def _cost_reference(keys, d, heads, groups, item):
    """Head by head, key by key."""
    flops = num_bytes = 0
    for head in range(heads):
        num_bytes += d * item + d * item  # a query read, an output written
        for _ in range(keys):
            flops += 2 * d + 2 * d
            if head % (heads // groups) == 0:  # read once for the whole group
                num_bytes += d * item + d * item
    return np.array([flops, num_bytes])


def cost(keys, d, heads, groups, item):
    """The baseline."""
    return 4 * heads * keys * d, item * (2 * groups * keys * d + 2 * heads * d)


@mistake(
    "the cache read by every head",
    rejected_by="the bytes",
    cause="Keys and values are repeated in memory; a kernel reads them once a group.",
)
def read_by_every_head(keys, d, heads, groups, item):
    """Keys and values repeated in memory."""
    return cost(keys, d, heads, heads, item)


@mistake(
    "grouped-query attention saves FLOPs",
    rejected_by="the FLOPs",
    cause="Grouping shares keys and values; each query head still does all its products.",
)
def work_by_groups(keys, d, heads, groups, item):
    """The FLOPs shrink with the cache."""
    return 4 * groups * keys * d, cost(keys, d, heads, groups, item)[1]


@mistake(
    "a multiplication without its addition",
    rejected_by="the FLOPs",
    cause="FLOPs count multiplication and addition: 2abc for a matrix product.",
)
def additions_forgotten(keys, d, heads, groups, item):
    """One operation for a multiplication and its addition."""
    flops, num_bytes = cost(keys, d, heads, groups, item)
    return flops // 2, num_bytes


@mistake(
    "values not read",
    rejected_by="the bytes",
    cause="The second product reads the values.",
)
def keys_only(keys, d, heads, groups, item):
    """The values are not read."""
    return 4 * heads * keys * d, item * (groups * keys * d + 2 * heads * d)


@mistake(
    "numbers taken for bytes",
    rejected_by="the bytes",
    cause="A bfloat16 number takes 2 bytes.",
)
def numbers_not_bytes(keys, d, heads, groups, item):
    """A number is taken for a byte."""
    return cost(keys, d, heads, groups, 1)


def _cost_cases(rng: np.random.Generator) -> list[Case]:
    names = ("keys", "d", "heads", "groups", "item")
    shapes = [
        ("one head, one key", 1, 2, 1, 1, 1), ("one head", 7, 4, 1, 1, 2), ("heads", 5, 3, 6, 6, 4),
        ("grouped-query attention", 5, 4, 6, 2, 2), ("one group", 9, 4, 8, 1, 2), ("a long cache", 300, 8, 4, 2, 2),
    ]  # fmt: skip
    return [Case(label, dict(zip(names, sizes, strict=True))) for label, *sizes in shapes]


def _cost_of(column: int):
    def test(run: Run, case: Case) -> Problem | None:
        wanted, found = run.expected(case)[0][column], run.value(case)[column]
        return None if wanted == found else Problem(str(wanted), str(found))

    return test


def _pair(answer: Any, arguments: dict[str, Any]) -> Tensor:
    flops, num_bytes = answer
    return torch.tensor([int(flops), int(num_bytes)])


DECODING_COST = Spec(
    name="ch15.decoding_cost",
    statement="decoding_cost(keys, d, heads, groups, item) -> (FLOPs, bytes) of one new query per head against "
    "a cache of `keys` keys and values with `groups` heads; item: bytes of a number. Count both products, a "
    "multiplication with its addition as 2; read queries, keys and values once, write the output once",
    required=("keys", "d", "heads", "groups", "item"),
    reference=_cost_reference,
    baseline=cost,
    differentiable=False,
    cases=_cost_cases,
    usual=(SHAPE,),
    checks=(
        Check("the FLOPs", "Each of the H queries meets every key and mixes every value.", _cost_of(0)),
        Check("the bytes", "Keys and values are read once a group, queries and outputs once a head.", _cost_of(1)),
    ),
    mutants=mistakes(
        read_by_every_head, work_by_groups, additions_forgotten, keys_only, numbers_not_bytes
    ),
    read=_pair,
    chapter=15,
    points=2,
)  # fmt: skip

# --- The backward pass of one tile ----------------------------------------------------------------


def _score_reference(scores, lse, value, output, gradient):
    """weight x (gradient . value - gradient . output), pair by pair."""
    found = np.zeros_like(scores)
    for i, j in np.ndindex(scores.shape):
        weight = np.exp(scores[i, j] - lse[i])
        by_weight = reference.dot(gradient[i], value[j])
        found[i, j] = weight * (by_weight - reference.dot(gradient[i], output[i]))
    return found


def score_gradient(scores, lse, value, output, gradient):
    """The baseline."""
    weights = (scores - lse[:, None]).exp()
    return weights * (gradient @ value.mT - (gradient * output).sum(-1, keepdim=True))


@mistake(
    "a softmax of the tile alone",
    rejected_by="a tile weighs what it weighed",
    cause="scores.softmax(-1) over a tile; exp(scores - lse) needs the row's own log-sum-exp.",
)
def softmax_of_the_tile(scores, lse, value, output, gradient):
    """The tile is normalized by itself."""
    weights = scores.softmax(-1)
    return weights * (gradient @ value.mT - (gradient * output).sum(-1, keepdim=True))


@mistake(
    "a mean over the tile alone",
    rejected_by="a tile weighs what it weighed",
    cause="What is subtracted is a mean over the whole row: gradient . output, known beforehand.",
)
def mean_of_the_tile(scores, lse, value, output, gradient):
    """The mean that is subtracted is taken over the tile alone."""
    weights = (scores - lse[:, None]).exp()
    by_weights = gradient @ value.mT
    return weights * (by_weights - (weights * by_weights).sum(-1, keepdim=True))


@mistake(
    "nothing subtracted in the softmax's gradient",
    rejected_by="a tile that is a whole row cancels",
    cause="Each score moves every weight of its row: subtract the row's mean.",
)
def nothing_subtracted(scores, lse, value, output, gradient):
    """As if each weight had its score to itself."""
    return (scores - lse[:, None]).exp() * (gradient @ value.mT)


@mistake(
    "the log-sum-exp along the wrong axis",
    rejected_by="RuntimeError",
    cause="lse has one number a row: lse[:, None].",
)
def lse_of_columns(scores, lse, value, output, gradient):
    """The log-sum-exp belongs to rows; here it meets the columns."""
    weights = (scores - lse).exp()
    return weights * (gradient @ value.mT - (gradient * output).sum(-1, keepdim=True))


def _tile_cases(rng: np.random.Generator) -> list[Case]:

    def case(
        label, rows, keys, at, width=3, spread=1.0, hide=False, dtype=torch.float64, peak=0.0
    ) -> Case:
        """The keys `at` of rows with so many of them; the rest was in other tiles."""
        scores = spread * rng.normal(size=(rows, keys))
        scores[:, 0] += peak
        if hide:
            scores[-1] = -np.inf
        value = rng.normal(size=(keys, width))
        answer = reference.online_softmax(scores, value)
        arguments = {"scores": scores[:, at], "lse": answer[:, -1], "value": value[at],
                     "output": answer[:, :-1], "gradient": rng.normal(size=(rows, width))}  # fmt: skip
        return Case(label, arguments, dtype)

    return [
        case("the only tile", 2, 4, slice(0, 4)),
        case("the first of two tiles", 3, 6, slice(0, 3)),
        case("a last tile, short", 4, 7, slice(5, 7)),
        case("a square tile", 3, 9, slice(3, 6)),
        # one saturated row, and not all: theirs is what is left when everything cancels
        case("large scores", 3, 6, slice(2, 5), spread=np.array([[300.0], [1.0], [1.0]])),
        case("a key with most of the weight", 3, 4, slice(0, 3), peak=6.0),
        case("a row that sees nothing", 3, 6, slice(0, 4), hide=True),
        case("float32", 4, 8, slice(2, 7), dtype=torch.float32),
    ]


def _whole_row(case: Case) -> bool:
    """Is the tile the whole row, so that its weights sum to 1?"""
    a = case.arguments
    sums = np.exp(a["scores"] - a["lse"][:, None]).sum(-1)
    return bool(np.allclose(sums, 1)) and case.dtype == torch.float64


def _cancels(run: Run, case: Case) -> Problem | None:
    expected, far = run.expected(case)
    left = largest(expected.sum(-1))  # by the rounding of what is given
    sums = run.value(case).astype(expected.dtype).sum(-1)
    far = expected.shape[-1] * far + left
    return compare(np.zeros_like(sums), sums, far, "sums of the rows")


def _no_more_than(run: Run, case: Case) -> Problem | None:
    """Where the tile has little of a row's weight, its gradients are small."""
    a = case.arrays()
    weight = np.exp(a["scores"] - a["lse"][:, None])
    by_weights = np.abs(a["gradient"] @ a["value"].T)
    most = weight * (by_weights + np.abs((a["gradient"] * a["output"]).sum(-1))[:, None])
    most, found = most + run.expected(case)[1], np.abs(run.value(case))
    if not (found <= most).all():  # NaN is no number that is at most another
        return Problem(
            "at most weight x (|gradient . value| + |gradient . output|)", f"{found.max():.4g}"
        )
    return None


SCORE_GRADIENT = Spec(
    name="ch15.score_gradient",
    statement="score_gradient(scores, lse, value, output, gradient): the gradient by the scores of one tile. "
    "scores (L, T) and value (T, dv): the tile's; lse (L), output (L, dv) and its gradient (L, dv): of the "
    "whole rows -> (L, T)",
    required=("scores", "lse", "value", "output", "gradient"),
    reference=_score_reference,
    baseline=score_gradient,
    cases=_tile_cases,
    checks=(
        Check(
            "a tile that is a whole row cancels",
            "Raising all scores of a row together changes no weight: the row's gradients sum to 0.",
            _cancels,
            when=_whole_row,
        ),
        Check(
            "a tile weighs what it weighed",
            "The weights are exp(score - lse), with the lse of the whole row; the tile alone knows too little.",
            _no_more_than,
        ),
    ),
    mutants=mistakes(softmax_of_the_tile, mean_of_the_tile, nothing_subtracted, lse_of_columns),
    chapter=15,
    points=3,
)  # fmt: skip

EXERCISES = (
    RUNNING_SUM,
    MERGE,
    WINDOW_TILES,
    DECODING_COST,
    SCORE_GRADIENT,
    replace(TILED_ATTENTION, name="ch15.mend", points=3),
)
