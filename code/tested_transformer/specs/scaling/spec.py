"""The Specs of chapter 3: the softmax, its Jacobian, and scores that are scaled in time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ... import reference
from ..judge import EQUAL, SHAPE, UNTOUCHED, Case, Check, Mutant, Problem, Run, Spec, compare


def _eps(case: Case, terms: int) -> float:
    """What rounding can do to a sum of `terms` numbers below 1."""
    return 2 * (terms + 2) * torch.finfo(case.dtype).eps


def _finite(run: Run, case: Case) -> Problem | None:
    if np.isfinite(run.value(case)).all():
        return None
    return Problem("finite numbers", "NaN or inf")


# --- The softmax ----------------------------------------------------------------------------------


def _softmax_cases(seed: int) -> list[Case]:
    rng = np.random.default_rng(seed)

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


def plain_softmax(scores: Tensor, *, temperature: float = 1.0) -> Tensor:
    """The baseline: the formula in the scores' own dtype."""
    if not scores.numel():
        return scores
    exponentials = ((scores - scores.amax(-1, keepdim=True)) / temperature).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


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
    SHAPE,
    UNTOUCHED,
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
    EQUAL,
)


def exponentials_that_overflow(scores, *, temperature=1.0):
    exponentials = (scores / temperature).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


def the_maximum_of_the_batch(scores, *, temperature=1.0):
    top = scores.max() if scores.numel() else 0.0
    exponentials = ((scores - top) / temperature).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


def no_exponentials(scores, *, temperature=1.0):
    return (scores / temperature) / (scores / temperature).sum(-1, keepdim=True)


def the_first_axis(scores, *, temperature=1.0):
    return (scores / temperature).softmax(0)


def the_temperature_after(scores, *, temperature=1.0):
    return scores.softmax(-1) / temperature


def the_temperature_multiplied(scores, *, temperature=1.0):
    return (scores * temperature).softmax(-1)


SOFTMAX_MUTANTS = (
    Mutant(
        "exponentials that overflow", exponentials_that_overflow, "no overflow",
        symptom="NaN for scores above 709 in float64, above 88 in float32.",
        cause="exp(s) is taken before anything is subtracted: inf / inf is NaN.",
        seen="source notes, 002:28", chapter=3,
    ),
    Mutant(
        "the maximum of the whole batch", the_maximum_of_the_batch, "no overflow",
        symptom="Rows that lie far below the highest row of the batch become NaN: 0/0.",
        cause="scores.max() in place of scores.amax(-1, keepdim=True): each row needs its own.",
        seen="made for this book", chapter=3,
    ),
    Mutant(
        "a softmax without exponentials", no_exponentials, "weights are a distribution",
        symptom="Negative weights as soon as a score is negative; adding a constant changes them.",
        cause="z_i / sum(z) in place of exp(z_i) / sum(exp(z)).",
        seen="source notes, 000:22 and 000:26 (in the formula, not in the code)", chapter=3,
    ),
    Mutant(
        "columns that sum to 1", the_first_axis, "weights are a distribution",
        symptom="Columns sum to 1, rows do not.",
        cause="dim=0 in place of dim=-1; with a single row nobody notices.",
        seen="made for this book", chapter=3,
    ),
    Mutant(
        "the temperature after the softmax", the_temperature_after, "weights are a distribution",
        symptom="Rows sum to 1/temperature, and no weight has moved towards another.",
        cause="The weights are divided; the scores should be.",
        seen="source notes, 001:1292 (where the temperature is sqrt(d))", chapter=3,
    ),
    Mutant(
        "the temperature multiplied", the_temperature_multiplied,
        "the temperature divides the scores",
        symptom="A higher temperature makes the weights sharper.",
        cause="scores * temperature; it is the scale, 1/temperature, that multiplies.",
        seen="made for this book", chapter=3,
    ),
)  # fmt: skip

SOFTMAX = Spec(
    name="softmax",
    statement="softmax(scores, temperature=1.0): exp(s_i / temperature) over the sum of these. "
    "scores (*batch, S) -> (*batch, S)",
    required=("scores",),
    reference=reference.tempered_softmax,
    baseline=plain_softmax,
    cases=_softmax_cases,
    checks=SOFTMAX_CHECKS,
    mutants=SOFTMAX_MUTANTS,
    chapter=3,
)

# --- Its Jacobian ---------------------------------------------------------------------------------


def _jacobian_cases(seed: int) -> list[Case]:
    rng = np.random.default_rng(seed)

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


def plain_jacobian(weights: Tensor) -> Tensor:
    """The baseline."""
    return torch.diag_embed(weights) - weights[..., :, None] * weights[..., None, :]


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
    SHAPE,
    UNTOUCHED,
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
    EQUAL,
)


def only_the_diagonal(weights):
    return torch.diag_embed(weights * (1 - weights))


def the_sign_of_the_others(weights):
    return torch.diag_embed(weights) + weights[..., :, None] * weights[..., None, :]


def the_square_forgotten(weights):
    others = 1 - torch.eye(weights.shape[-1], dtype=weights.dtype)
    return torch.diag_embed(weights) - others * weights[..., :, None] * weights[..., None, :]


JACOBIAN_MUTANTS = (
    Mutant(
        "only the diagonal of the Jacobian", only_the_diagonal, "rows sum to 0",
        symptom="Raising one score leaves all other weights where they are.",
        cause="p(1 - p) is a sigmoid's derivative; in a softmax every score moves every weight.",
        seen="made for this book", chapter=3,
    ),
    Mutant(
        "the sign of the other derivatives", the_sign_of_the_others,
        "a score lifts its own weight and lowers the others",
        symptom="Raising one score raises every weight.",
        cause="+ p_i p_j where - p_i p_j is right.",
        seen="made for this book", chapter=3,
    ),
    Mutant(
        "the square on the diagonal forgotten", the_square_forgotten, "rows sum to 0",
        symptom="A saturated winner still seems to answer: its derivative is 1 in place of 0.",
        cause="p_i on the diagonal where p_i - p_i^2 is right.",
        seen="made for this book", chapter=3,
    ),
)  # fmt: skip

SOFTMAX_JACOBIAN = Spec(
    name="softmax_jacobian",
    statement="softmax_jacobian(weights): entry (i, j) is the derivative of weight i by score j. "
    "weights (*batch, S) -> (*batch, S, S)",
    required=("weights",),
    reference=reference.jacobian_of_weights,
    baseline=plain_jacobian,
    cases=_jacobian_cases,
    checks=JACOBIAN_CHECKS,
    mutants=JACOBIAN_MUTANTS,
    chapter=3,
)

# --- Scaled scores --------------------------------------------------------------------------------


def _score_cases(seed: int) -> list[Case]:
    rng = np.random.default_rng(seed)

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


def plain_scores(query: Tensor, key: Tensor, *, scale: float | None = None) -> Tensor:
    """The baseline: scaled before the product, in the query's own dtype."""
    return (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.mT


def _products(case: Case) -> np.ndarray:
    arrays = case.arrays()
    return np.asarray(arrays["query"] @ np.swapaxes(arrays["key"], -1, -2), dtype=np.float64)


def _ratio(run: Run, case: Case) -> Problem | None:
    """Answer / product must be 1/sqrt(d), or the scale that was given."""
    scale = case.arguments.get("scale") or case.arguments["query"].shape[-1] ** -0.5
    return compare(_products(case) * scale, run.value(case), 2 * run.expected(case)[1])


SCORE_CHECKS = (
    SHAPE,
    UNTOUCHED,
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
    EQUAL,
)


def scaled_after_the_product(query, key, *, scale=None):
    return query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)


def divided_by_d(query, key, *, scale=None):
    return (query * (1 / query.shape[-1] if scale is None else scale)) @ key.mT


def the_number_of_keys(query, key, *, scale=None):
    turned = key.mT
    keys = max(turned.shape[-1], 1)
    return (query * (keys**-0.5 if scale is None else scale)) @ turned


SCORE_MUTANTS = (
    Mutant(
        "scaled after the product", scaled_after_the_product, "no overflow",
        symptom="inf in float16, then NaN, where the scaled score is an ordinary number.",
        cause="The product is formed first: it is sqrt(d) times larger and passes 65504.",
        seen="PaddlePaddle/Paddle pull request 41933; ultralytics pull request 24990", chapter=3,
    ),
    Mutant(
        "divided by d", divided_by_d, "the scale is 1/sqrt(d)",
        symptom="Nearly even weights, the more so the larger the head.",
        cause="1/d where the standard deviation of q.k, sqrt(d), is meant.",
        seen="source notes, 001:582 and 001:592 (in the text)", chapter=3,
    ),
    Mutant(
        "the root of the number of keys", the_number_of_keys, "the scale is 1/sqrt(d)",
        symptom="The same text is attended to differently once it is padded.",
        cause="The key is transposed before its last size is read: that is S and no longer d.",
        seen="made for this book", chapter=3,
    ),
)  # fmt: skip

SCALED_SCORES = Spec(
    name="scaled_scores",
    statement="scaled_scores(query, key, scale=1/sqrt(d)): q.k scale for each pair, in the "
    "query's dtype, without overflow. (*batch, L, d), (*batch, S, d) -> (*batch, L, S)",
    required=("query", "key"),
    reference=reference.scaled_scores,
    baseline=plain_scores,
    cases=_score_cases,
    checks=SCORE_CHECKS,
    mutants=SCORE_MUTANTS,
    chapter=3,
)
