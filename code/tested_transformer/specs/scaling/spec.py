"""The Specs of chapter 3: the softmax, its Jacobian, and scores that are scaled in time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ... import reference
from ..checks import any_batch, transposed, varied
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import AGAIN, EQUAL, GRADIENTS, Case, Check, Run, Spec, finite
from . import mutants
from .mutants import plain_jacobian, plain_scores, plain_softmax

# --- The softmax ----------------------------------------------------------------------------------


def _softmax_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *shape, spread=1.0, shift=0.0, dtype=torch.float64, **options) -> Case:
        return Case(label, {"scores": shift + spread * rng.normal(size=shape), **options}, dtype)

    steps = Case(
        "rows of very different height", {"scores": np.array([[0.0, 1.0], [2000.0, 2001.0]])}
    )
    masked = np.where(rng.random((4, 6)) < 0.5, -np.inf, rng.normal(size=(4, 6)))
    masked[:, 0], masked[:, 1] = rng.normal(size=4), -np.inf
    return [
        case("two scores", 2),
        case("one score", 1),
        case("a row", 5),
        case("rows", 3, 4),
        case("a square", 4, 4),
        case("a batch of heads", 2, 3, 4, 5),
        case("no scores at all", 3, 0),
        case("no rows", 0, 4),
        case("scores in the thousands", 2, 5, spread=2000.0),
        case("all far above zero", 2, 5, shift=5000.0),
        case("all far below zero", 2, 5, shift=-5000.0),
        steps,
        Case("scores of -inf", {"scores": masked}),
        Case("scores of -inf, all others far below", {"scores": masked - 2e4}),
        Case("scores of -inf, float16", {"scores": masked - 100.0}, torch.float16),
        Case("transposed tensors", transposed({"scores": rng.normal(size=(2, 3, 4))})),
        case("a high temperature", 3, 4, temperature=3.0),
        case("a low temperature", 3, 4, temperature=0.25),
        case("a low temperature, large scores", 3, 4, spread=2000.0, temperature=0.25),
        case("a low temperature, float32", 3, 4, spread=90.0, temperature=0.5, dtype=torch.float32),
        case("a high temperature, float16", 3, 4, temperature=2.0, dtype=torch.float16),
        case("a whole number for the temperature", 3, 4, temperature=2),
        case("float32", 3, 7, dtype=torch.float32),
        case("float32, large", 3, 7, spread=100.0, dtype=torch.float32),
        case("bfloat16", 3, 7, dtype=torch.bfloat16),
        case("bfloat16, large", 3, 7, spread=100.0, dtype=torch.bfloat16),
        case("float16", 3, 7, dtype=torch.float16),
        case("float16, large", 3, 7, spread=20.0, dtype=torch.float16),
        case("many scores, float16", 2, 3000, dtype=torch.float16),
    ]


def _softmax_by_chance(draw: Draw) -> Case:
    shape = (*any_batch(draw), draw.one_of(4, 1, 9))
    spread, shift = draw.one_of(1.0, 1000.0), draw.one_of(0.0, 300.0, -300.0)
    scores = shift + spread * draw.numbers.normal(size=shape)
    options = draw.one_of({}, {"temperature": 0.5}, {"temperature": 2.0})
    dtype = draw.one_of(torch.float64, torch.float32, torch.bfloat16, torch.float16)
    return Case("options by chance", {"scores": scores, **options}, dtype)


def _shares(run: Run, case: Case) -> Problem | None:
    weights = run.value(case)
    if weights.size and weights.min() < 0:
        return Problem("weights of at least 0", f"a weight of {weights.min():.4g}")
    sums, slack = weights.sum(-1, keepdims=True), weights.shape[-1] * run.expected(case)[1]
    return compare(np.full_like(sums, float(weights.shape[-1] > 0)), sums, slack)


def _shift(run: Run, case: Case) -> Problem | None:
    moved = varied(case, "moved", scores=case.arguments["scores"] + 3.0)
    slack = run.expected(case)[1] + run.expected(moved)[1]
    return unchanged(
        run.value(case), run.value(moved), slack, "3 is added to all scores", "a weight"
    )


def _odds(run: Run, case: Case) -> Problem | None:
    """log(p_0 / p_j) is the difference of the two scores, divided by the temperature."""
    scores, weights = case.arrays()["scores"].astype(np.float64), run.value(case)
    expected = (scores[..., :1] - scores) / case.arguments["temperature"]
    with np.errstate(divide="ignore", invalid="ignore"):
        got = np.log(weights[..., :1]) - np.log(weights)
    exact, tolerance = run.expected(case)
    smallest = float(exact.min()) - tolerance  # a logarithm's slope is 1 over the weight
    return compare(expected, got, 2 * tolerance / smallest)


def _infinite(run: Run, case: Case) -> Problem | None:
    got = run.value(case)[np.isneginf(case.arguments["scores"])]
    return compare(np.zeros_like(got), got, 0.0, "the weights of scores of -inf")


def _gentle(case: Case) -> bool:
    scores = case.arguments["scores"]
    small = np.max(np.abs(scores), initial=0.0) < 10
    return bool(scores.size and small and case.dtype == torch.float64)


def _masked(case: Case) -> bool:
    """Whether a score is -inf."""
    return bool(np.isneginf(case.arguments["scores"]).any())


def _tempered(case: Case) -> bool:
    return case.arguments.get("temperature") is not None


def _quotient_underflows(case: Case) -> bool:
    """The derivative of powers / sum passes through weight / sum, about 1/S^2."""
    keys = case.arguments["scores"].shape[-1]
    return keys > 0 and keys**-2.0 < torch.finfo(case.dtype).tiny


SOFTMAX_CHECKS = (
    Check(
        "no overflow",
        "exp(710) is already too large for float64. Subtract the maximum of each row first.",
        finite,
        when=lambda case: not _masked(case),
    ),
    Check(
        "weights are a distribution",
        "The weights of a row are at least 0 and sum to 1, whatever the scores.",
        _shares,
    ),
    Check(
        "a shift changes nothing",
        "Only differences of scores count: adding 3 to all of them must leave the weights alone.",
        _shift,
        when=_gentle,
    ),
    Check(
        "the temperature divides the scores",
        "log(p_i / p_j) must be (s_i - s_j) / temperature: a high temperature makes weights even.",
        _odds,
        needs=("temperature",),
        when=_gentle,
    ),
    Check(
        "a score of -inf has no weight",
        "exp(-inf) is 0: a mask of -inf must leave nothing, however low the other scores are.",
        _infinite,
        when=_masked,
    ),
)


SLOPED = replace(
    GRADIENTS, when=lambda case: GRADIENTS.when(case) and not _quotient_underflows(case)
)

SOFTMAX = Spec(
    name="softmax",
    statement="softmax(scores, temperature=1.0): exp(s_i / temperature) over the sum of these; "
    "scores of any size, -inf included where not all of a row are. scores (*batch, S) -> (*batch, S)",
    required=("scores",),
    reference=reference.tempered_softmax,
    baseline=plain_softmax,
    cases=_softmax_cases,
    combine=_softmax_by_chance,
    num_drawn=8,
    checks=SOFTMAX_CHECKS,
    last=(EQUAL, SLOPED, AGAIN),
    mutants=mistakes_in(mutants, of="softmax"),
    chapter=3,
)

# --- Its Jacobian ---------------------------------------------------------------------------------


def _jacobian_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *shape, spread=1.0, dtype=torch.float64) -> Case:
        scores = spread * rng.normal(size=shape)
        return Case(label, {"weights": reference.tempered_softmax(scores)}, dtype)

    return [
        Case("two equal weights", {"weights": np.array([0.5, 0.5])}),
        Case("all on one key", {"weights": np.array([0.0, 1.0, 0.0])}),
        case("a row", 4),
        case("rows", 3, 5),
        case("as many rows as keys", 4, 4),
        case("a batch of heads", 2, 3, 4, 5),
        case("nearly saturated", 2, 4, spread=10.0),
        case("no keys", 3, 0),
        case("float32", 3, 6, dtype=torch.float32),
        case("bfloat16", 2, 5, dtype=torch.bfloat16),
        case("float16", 2, 5, dtype=torch.float16),
        Case("one key", {"weights": np.ones((2, 1))}),
        case("many keys, float32", 2, 200, dtype=torch.float32),
        Case("transposed tensors", transposed({"weights": np.full((3, 2), 0.5)})),
    ]


def _jacobian_by_chance(draw: Draw) -> Case:
    shape = (*any_batch(draw), draw.one_of(4, 1, 6))
    scores = draw.one_of(1.0, 10.0) * draw.numbers.normal(size=shape)
    dtype = draw.one_of(torch.float64, torch.float32, torch.bfloat16, torch.float16)
    weights = reference.tempered_softmax(scores)
    return Case("options by chance", {"weights": weights}, dtype)


def _signs(run: Run, case: Case) -> Problem | None:
    jacobian, slack = run.value(case), run.expected(case)[1]
    own = np.eye(jacobian.shape[-1], dtype=bool)
    if (jacobian[..., own] < -slack).any():
        return Problem("no negative entry on the diagonal", "one below 0")
    if (jacobian[..., ~own] > slack).any():
        return Problem("no positive entry beside the diagonal", "one above 0")
    return None


def _rows_to_zero(run: Run, case: Case) -> Problem | None:
    """Nothing is left of each row but what the weights' own sum is off from 1."""
    weights = case.arrays()["weights"].astype(np.float64)[..., None]
    sums = run.value(case).sum(-1, keepdims=True)
    left = weights * (1 - weights.sum(-2, keepdims=True))
    return compare(left, sums, weights.shape[-2] * run.expected(case)[1], "the sums of the rows")


JACOBIAN_CHECKS = (
    Check(
        "a score lifts its own weight and lowers the others",
        "Entry (i, j) is the derivative of weight i by score j: positive only for i = j.",
        _signs,
    ),
    Check(
        "rows sum to 0",
        "Raising all scores together changes no weight, so the entries of a row cancel.",
        _rows_to_zero,
    ),
)


SOFTMAX_JACOBIAN = Spec(
    name="softmax_jacobian",
    statement="softmax_jacobian(weights): entry (i, j) is the derivative of weight i by score j. "
    "weights (*batch, S) -> (*batch, S, S)",
    required=("weights",),
    reference=reference.jacobian_of_weights,
    baseline=plain_jacobian,
    cases=_jacobian_cases,
    combine=_jacobian_by_chance,
    num_drawn=4,
    checks=JACOBIAN_CHECKS,
    mutants=mistakes_in(mutants, of="softmax_jacobian"),
    chapter=3,
)

# --- Scaled scores --------------------------------------------------------------------------------


def _score_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, query, keys, spread=1.0, dtype=torch.float64, **options) -> Case:
        arguments = {
            "query": spread * rng.normal(size=query),
            "key": spread * rng.normal(size=(*keys, query[-1])),
        }
        return Case(label, {**arguments, **options}, dtype)

    def large(size, **options) -> dict:
        query, key = (size * rng.uniform(0.9, 1.1, (rows, 64)) for rows in (2, 3))
        return {"query": query, "key": key, **options}

    same = {"query": np.full((2, 64), 40.0), "key": np.full((3, 64), 40.0)}

    lying = transposed({"query": rng.normal(size=(2, 3, 4)), "key": rng.normal(size=(2, 5, 4))})
    return [
        case("one query, one key", (1, 3), (1,)),
        case("no batch axis", (3, 4), (5,)),
        case("heads", (2, 3, 5, 4), (2, 3, 7)),
        case("no keys", (3, 4), (0,)),
        case("one feature", (2, 1), (3,)),
        case("a batch of one", (1, 3, 4), (1, 2)),
        Case("transposed tensors", lying),
        case("a scale of its own", (2, 3, 4), (2, 5), scale=0.3),
        case("a scale of 0", (2, 3, 4), (2, 5), scale=0.0),
        case("a negative scale", (2, 3, 4), (2, 5), scale=-0.5),
        case("a whole number for the scale", (2, 3, 4), (2, 5), scale=2),
        case("a scale of its own, bfloat16", (3, 4), (5,), dtype=torch.bfloat16, scale=0.3),
        case("float32", (2, 3, 8), (2, 5), dtype=torch.float32),
        case("bfloat16", (2, 3, 8), (2, 5), dtype=torch.bfloat16),
        case("float16", (2, 3, 8), (2, 5), dtype=torch.float16),
        Case("float16, products of 102400", same, torch.float16),
        Case("float16, products of 102400, a scale", same | {"scale": 0.0625}, torch.float16),
        Case("bfloat16, products of 10^5", large(40.0), torch.bfloat16),
        Case("float32, products of 4e38", large(2.5e18), torch.float32),
        Case("bfloat16, products of 4e38", large(2.5e18), torch.bfloat16),
        Case("float64, products of 2e308", large(1.85e153), torch.float64),
    ]


def _scores_by_chance(draw: Draw) -> Case:
    batch, d = any_batch(draw), draw.one_of(4, 1, 9)
    query, key = (*batch, draw.one_of(3, 1), d), (*batch, draw.one_of(5, 1, 0), d)
    arguments = {"query": draw.numbers.normal(size=query), "key": draw.numbers.normal(size=key)}
    arguments = draw.one_of(arguments, transposed(arguments))
    options = draw.one_of({}, {"scale": 0.5}, {"scale": -2.0}, {"scale": 0.0})
    dtype = draw.one_of(torch.float64, torch.float32, torch.bfloat16, torch.float16)
    return Case("options by chance", arguments | options, dtype)


def _products(case: Case) -> np.ndarray:
    arrays = case.arrays()
    return np.asarray(arrays["query"] @ np.swapaxes(arrays["key"], -1, -2), dtype=np.float64)


def _ratio(run: Run, case: Case) -> Problem | None:
    """Answer / product must be 1/sqrt(d), or the scale that was given."""
    scale = case.arguments.get("scale")
    scale = case.arguments["query"].shape[-1] ** -0.5 if scale is None else scale
    return compare(_products(case) * scale, run.value(case), 2 * run.expected(case)[1])


def _large(case: Case) -> bool:
    return "products of" in case.label


SCORE_CHECKS = (
    Check(
        "no overflow",
        "The scaled score fits into float16, the unscaled product does not: scale the query first.",
        finite,
        when=lambda case: case.dtype == torch.float16 or _large(case),
    ),
    Check(
        "the scale is 1/sqrt(d)",
        "Each score is q.k / sqrt(d), where d is the last axis of query and key: one head's size.",
        _ratio,
        when=lambda case: not _large(case) or case.dtype == torch.float16,
    ),
)


SCALED_SCORES = Spec(
    name="scaled_scores",
    statement="scaled_scores(query, key, scale=1/sqrt(d)): q.k scale for each pair, in the "
    "query's dtype, without overflow. (*batch, L, d), (*batch, S, d) -> (*batch, L, S)",
    required=("query", "key"),
    reference=reference.scaled_scores,
    baseline=plain_scores,
    cases=_score_cases,
    combine=_scores_by_chance,
    num_drawn=6,
    checks=SCORE_CHECKS,
    mutants=mistakes_in(mutants, of="scaled_scores"),
    chapter=3,
)
