"""The Specs of chapter 3: the softmax, its Jacobian, and scores that are scaled in time."""

from __future__ import annotations

import numpy as np
import torch

from ... import reference
from ..compare import Problem, compare
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants
from .mutants import plain_jacobian, plain_scores, plain_softmax


def _eps(case: Case, terms: int) -> float:
    """What rounding can do to a sum of `terms` numbers below 1."""
    return 2 * (terms + 2) * torch.finfo(case.dtype).eps


def _finite(run: Run, case: Case) -> Problem | None:
    if np.isfinite(run.value(case)).all():
        return None
    return Problem("finite numbers", "NaN or inf")


# --- The softmax ----------------------------------------------------------------------------------


def _softmax_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *shape, spread=1.0, shift=0.0, dtype=torch.float64, **options) -> Case:
        return Case(label, {"scores": shift + spread * rng.normal(size=shape), **options}, dtype)

    steps = Case(
        "rows of very different height", {"scores": np.array([[0.0, 1.0], [2000.0, 2001.0]])}
    )
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
        case("a high temperature", 3, 4, temperature=3.0),
        case("a low temperature", 3, 4, temperature=0.25),
        case("float32", 3, 7, dtype=torch.float32),
        case("float32, large", 3, 7, spread=100.0, dtype=torch.float32),
        case("bfloat16", 3, 7, dtype=torch.bfloat16),
        case("float16, large", 3, 7, spread=20.0, dtype=torch.float16),
    ]


def _shares(run: Run, case: Case) -> Problem | None:
    weights = run.value(case)
    if weights.size and weights.min() < 0:
        return Problem("weights of at least 0", f"a weight of {weights.min():.4g}")
    sums = weights.sum(-1, keepdims=True)
    return compare(np.full_like(sums, float(weights.shape[-1] > 0)), sums, _eps(case, 8))


def _shift(run: Run, case: Case) -> Problem | None:
    moved = run.value(case, scores=case.arguments["scores"] + 3.0)
    return compare(run.value(case), moved, 2 * run.expected(case)[1] + 8 * _eps(case, 1))


def _odds(run: Run, case: Case) -> Problem | None:
    """log(p_0 / p_j) is the difference of the two scores, divided by the temperature."""
    scores, weights = case.arrays()["scores"].astype(np.float64), run.value(case)
    expected = (scores[..., :1] - scores) / case.arguments["temperature"]
    with np.errstate(divide="ignore", invalid="ignore"):
        got = np.log(weights[..., :1]) - np.log(weights)
    return compare(expected, got, _eps(case, 4) / max(float(weights.min()), 1e-12))


def _gentle(case: Case) -> bool:
    scores = case.arguments["scores"]
    small = np.max(np.abs(scores), initial=0.0) < 10
    return bool(scores.size and small and case.dtype == torch.float64)


def _tempered(case: Case) -> bool:
    return case.arguments.get("temperature") is not None


SOFTMAX_CHECKS = (
    Check(
        "no overflow",
        "exp(710) is already too large for float64. Subtract the maximum of each row first.",
        _finite,
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
    ),
)


SOFTMAX = Spec(
    name="softmax",
    statement="softmax(scores, temperature=1.0): exp(s_i / temperature) over the sum of these. "
    "scores (*batch, S) -> (*batch, S)",
    required=("scores",),
    reference=reference.tempered_softmax,
    baseline=plain_softmax,
    cases=_softmax_cases,
    checks=SOFTMAX_CHECKS,
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
    ]


def _signs(run: Run, case: Case) -> Problem | None:
    jacobian = run.value(case)
    own = np.eye(jacobian.shape[-1], dtype=bool)
    if (jacobian[..., own] < 0).any():
        return Problem("no negative entry on the diagonal", "one below 0")
    if (jacobian[..., ~own] > 0).any():
        return Problem("no positive entry beside the diagonal", "one above 0")
    return None


def _rows_to_zero(run: Run, case: Case) -> Problem | None:
    sums = run.value(case).sum(-1, keepdims=True)
    return compare(np.zeros_like(sums), sums, _eps(case, 8))


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

    large = {"query": np.full((2, 64), 40.0), "key": np.full((3, 64), 40.0)}
    return [
        case("one query, one key", (1, 3), (1,)),
        case("no batch axis", (3, 4), (5,)),
        case("heads", (2, 3, 5, 4), (2, 3, 7)),
        case("no keys", (3, 4), (0,)),
        case("a scale of its own", (2, 3, 4), (2, 5), scale=0.3),
        case("float32", (2, 3, 8), (2, 5), dtype=torch.float32),
        case("bfloat16", (2, 3, 8), (2, 5), dtype=torch.bfloat16),
        case("float16", (2, 3, 8), (2, 5), dtype=torch.float16),
        Case("float16, products of 102400", large, torch.float16),
    ]


def _products(case: Case) -> np.ndarray:
    arrays = case.arrays()
    return np.asarray(arrays["query"] @ np.swapaxes(arrays["key"], -1, -2), dtype=np.float64)


def _ratio(run: Run, case: Case) -> Problem | None:
    """Answer / product must be 1/sqrt(d), or the scale that was given."""
    scale = case.arguments.get("scale") or case.arguments["query"].shape[-1] ** -0.5
    return compare(_products(case) * scale, run.value(case), 2 * run.expected(case)[1])


SCORE_CHECKS = (
    Check(
        "no overflow",
        "The scaled score fits into float16, the bare product does not: scale the query first.",
        _finite,
        when=lambda case: case.dtype == torch.float16,
    ),
    Check(
        "the scale is 1/sqrt(d)",
        "Each score is q.k / sqrt(d), where d is the last axis of query and key: one head's size.",
        _ratio,
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
    checks=SCORE_CHECKS,
    mutants=mistakes_in(mutants, of="scaled_scores"),
    chapter=3,
)
