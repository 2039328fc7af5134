"""The Specs of CRATE: a rate, its gradient, attention with one projection, a step that lowers the LASSO objective."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import reference
from ..checks import any_dtype
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants

# --- The rate -------------------------------------------------------------------------------------


def _rate_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, shape, eps, dtype=torch.float64) -> Case:
        return Case(label, {"x": rng.normal(size=shape), "eps": eps}, dtype)

    return [
        case("one token", (1, 2), 1.0),
        case("as many tokens as features", (3, 3), 0.5),
        case("more tokens than features", (6, 3), 0.5),
        case("fewer tokens than features", (2, 5), 0.8),
        case("axes of a batch", (2, 2, 4, 3), 0.5),
        case("float32", (2, 5, 4), 0.7, torch.float32),
        case("no tokens in a batch of none", (0, 3, 2), 0.5),
    ]


def _rate_by_chance(draw: Draw) -> Case:
    batch, length, width = draw.one_of((), (2,)), draw.one_of(2, 1, 5), draw.one_of(3, 1, 4)
    x = draw.numbers.normal(size=(*batch, length, width))
    return Case("sizes by chance", {"x": x, "eps": draw.one_of(1.0, 0.5, 2.0)}, any_dtype(draw))


def _slack(run: Run, case: Case) -> Any:
    return 2 * run.expected(case)[1]


def _every_token_twice(run: Run, case: Case) -> Problem | None:
    x = case.arguments["x"]
    twice = run.value(case, x=np.concatenate((x, x), -2))
    return unchanged(run.value(case), twice, 2 * _slack(run, case), "every token comes twice")


def _zeros_cost_nothing(run: Run, case: Case) -> Problem | None:
    got = run.value(case, x=np.zeros_like(case.arguments["x"]))
    return compare(np.zeros_like(got), got, case.rounding(1), "the rate of zeros")


CODING_RATE = Spec(
    name="coding_rate",
    statement="coding_rate(x, eps): 1/2 log det(I + D / (L eps^2) x^T x), the natural logarithm, for each sequence of L "
    "tokens. x (*batch, L, D) -> (*batch)",
    required=("x", "eps"),
    reference=reference.coding_rate,
    baseline=mutants.RateFormula(),
    cases=_rate_cases,
    combine=_rate_by_chance,
    num_drawn=4,
    checks=(
        Check("zeros cost nothing", "The determinant of I is 1, and log 1 is 0.", _zeros_cost_nothing),
        Check(
            "a token that comes twice costs nothing more",
            "The rate is per token: L divides the sum over tokens.",
            _every_token_twice,
            when=lambda case: not case.is_empty,
        ),
    ),
    mutants=mistakes_in(mutants, "coding_rate"),
    chapter=21,
)  # fmt: skip

# --- Its gradient ---------------------------------------------------------------------------------


def _tokens(rng: np.random.Generator, shape, heads, size) -> dict[str, Any]:
    bases = rng.normal(size=(heads, shape[-1], size)) / shape[-1] ** 0.5
    return {"x": rng.normal(size=shape), "bases": bases}


def _gradient_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, shape, heads, size, eps, dtype=torch.float64) -> Case:
        return Case(label, _tokens(rng, shape, heads, size) | {"eps": eps}, dtype)

    return [
        case("one head", (3, 2), 1, 2, 1.0),
        case("two heads", (4, 4), 2, 2, 0.7),
        case("more tokens than features", (6, 3), 2, 1, 0.5),
        case("axes of a batch", (2, 2, 3, 4), 3, 2, 0.8),
        case("one token", (1, 4), 2, 2, 1.0),
        case("float32", (2, 5, 4), 2, 2, 1.0, torch.float32),
        case("a batch of none", (0, 3, 2), 1, 1, 0.5),
    ]


def _gradient_by_chance(draw: Draw) -> Case:
    shape = (*draw.one_of((), (2,)), draw.one_of(2, 1, 4), draw.one_of(3, 4))
    tokens = _tokens(draw.numbers, shape, draw.one_of(2, 1, 3), draw.one_of(2, 1))
    return Case("sizes by chance", tokens | {"eps": draw.one_of(1.0, 0.6)}, any_dtype(draw))


def _rate(x: np.ndarray, bases: np.ndarray, eps: float) -> float:
    """The subspace coding rate of all sequences together, by NumPy's determinant."""
    y = x[..., None, :, :] @ bases
    factor = y.shape[-1] / (y.shape[-2] * eps**2)
    gram = np.eye(y.shape[-2]) + factor * y @ np.swapaxes(y, -1, -2)
    return float(np.linalg.slogdet(gram)[1].sum() / 2)


STEP = (
    2.0**-17
)  # of central differences in float64: truncation and cancellation are both near 2^-34


def _is_the_gradient(run: Run, case: Case) -> Problem | None:
    """Along one direction, by central differences of the rate."""
    arrays = {name: np.asarray(a, np.float64) for name, a in case.arrays().items() if name != "eps"}
    eps, direction = case.arguments["eps"], np.cos(np.arange(arrays["x"].size))
    direction = direction.reshape(arrays["x"].shape)
    high, low = (
        _rate(arrays["x"] + sign * STEP * direction, arrays["bases"], eps) for sign in (1, -1)
    )
    wanted = np.asarray((high - low) / (2 * STEP))
    got = np.asarray((run.value(case) * direction).sum())
    steep = float(np.abs(arrays["bases"]).max()) * arrays["bases"].shape[-1] / eps**2
    curved = direction.size * STEP**2 * (1 + steep) ** 3 + 2.0**-52 / STEP * (1 + abs(high))
    slack = direction.size * float(_slack(run, case)) + curved
    return compare(wanted, got, slack, "the slope of the rate along a direction")


def _by_the_larger_inverse(x: Tensor, bases: Tensor, eps: float) -> Tensor:
    """a (I + a y y^T)^-1 y U^T or a y (I + a y^T y)^-1 U^T: whichever inverts the larger matrix, and rounds more."""
    y = x.unsqueeze(-3) @ bases  # *B H L d
    length, d = y.shape[-2:]
    a = d / (max(length, 1) * eps**2)
    gram = y.mT @ y if length < d else y @ y.mT
    inverse = torch.linalg.inv(torch.eye(max(length, d), dtype=x.dtype) + a * gram)
    turned = y @ inverse if length < d else inverse @ y
    return (a * turned @ bases.mT).sum(-3)


CODING_RATE_GRADIENT = Spec(
    name="coding_rate_gradient",
    statement="coding_rate_gradient(x, bases, eps): the gradient with respect to x of the sum over heads of 1/2 log det(I "
    "+ d / (L eps^2) y^T y), y = x U_h: the sum over heads of a (I + a y y^T)^-1 y U_h^T, a = d / (L eps^2). x "
    "(*batch, L, D), bases U (H, D, d) -> (*batch, L, D)",
    required=("x", "bases", "eps"),
    reference=reference.coding_rate_gradient,
    baseline=_by_the_larger_inverse,
    cases=_gradient_cases,
    combine=_gradient_by_chance,
    num_drawn=4,
    checks=(
        Check(
            "the rate rises by it",
            "Along any direction the rate changes by the dot product with the gradient.",
            _is_the_gradient,
            when=lambda case: not case.is_empty,
        ),
    ),
    mutants=mistakes_in(mutants, "coding_rate_gradient"),
    chapter=21,
)

# --- Attention in subspaces -----------------------------------------------------------------------


def _attention_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, shape, heads, size, dtype=torch.float64, **options) -> Case:
        return Case(label, _tokens(rng, shape, heads, size) | options, dtype)

    return [
        case("one head", (3, 2), 1, 2),
        case("two heads", (4, 4), 2, 2),
        case("another scale", (3, 4), 2, 2, scale=1.0),
        case("causal, and a scale of its own", (5, 6), 2, 3, causal=True, scale=0.3),
        case("axes of a batch", (2, 2, 3, 4), 3, 2, causal=True),
        case("float32", (2, 5, 4), 2, 3, torch.float32),
    ]


def _attention_by_chance(draw: Draw) -> Case:
    shape = (*draw.one_of((), (2,)), draw.one_of(2, 1, 4), draw.one_of(3, 4))
    tokens = _tokens(draw.numbers, shape, draw.one_of(2, 1, 3), draw.one_of(2, 1))
    options = draw.one_of({}, {"causal": True}, {"scale": 0.3})
    return Case("sizes by chance", tokens | options, any_dtype(draw))


def _one_token(run: Run, case: Case) -> Problem | None:
    """A single token attends to itself: the output is x U U^T, summed over heads."""
    arrays = case.arrays()
    x = arrays["x"][..., :1, :]
    wanted = sum(x @ basis @ basis.T for basis in arrays["bases"]).astype(np.float64)
    got = run.value(case, x=np.ascontiguousarray(case.arguments["x"][..., :1, :]))
    terms = arrays["bases"].shape[0] * (x.shape[-1] + arrays["bases"].shape[-1])
    largest = float(np.abs(x).max() * np.abs(arrays["bases"]).max() ** 2) * terms
    return compare(wanted, got, case.rounding(terms) * largest, "for one token, the output")


SUBSPACE_ATTENTION = Spec(
    name="subspace_attention",
    statement="subspace_attention(x, bases, *, scale, causal): the sum over heads of softmax(scale y y^T) y U_h^T, y = x "
    "U_h; scale is 1 / sqrt(d) by default. x (*batch, L, D), bases U (H, D, d) -> (*batch, L, D)",
    required=("x", "bases"),
    reference=reference.subspace_attention,
    baseline=mutants.AttentionFormula(),
    cases=_attention_cases,
    combine=_attention_by_chance,
    num_drawn=4,
    checks=(
        Check(
            "one token attends to itself",
            "Its output is its projection on every subspace, added up: x U U^T.",
            _one_token,
        ),
    ),
    mutants=mistakes_in(mutants, "subspace_attention"),
    chapter=21,
)

# --- The step to sparse codes ---------------------------------------------------------------------


def _codes(rng: np.random.Generator, batch, width, size, **options) -> dict[str, Any]:
    dictionary = rng.normal(size=(width, size)) / width**0.5
    steep = float(np.linalg.norm(dictionary.T @ dictionary, 2))
    return {
        "codes": np.abs(rng.normal(size=(*batch, size))), "x": rng.normal(size=(*batch, width)),
        "dictionary": dictionary, "step_size": 1 / steep, "sparsity": 0.2,
    } | options  # fmt: skip


def _step_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, **options) -> Case:
        return Case(label, _codes(rng, *sizes, **options), dtype)

    signed = _codes(rng, (4,), 3, 3, step_size=0.1, sparsity=0.1)
    signed["codes"] = rng.normal(size=(4, 3))
    return [
        case("two features", (1,), 2, 2),
        case("more codes than features", (4,), 3, 5),
        case("fewer codes than features", (2,), 4, 2, sparsity=0.5),
        case("axes of a batch", (2, 3), 3, 3, step_size=0.05),
        case("no sparsity", (3,), 3, 4, sparsity=0.0),
        Case("codes of both signs", signed),
        case("float32", (3,), 4, 4, dtype=torch.float32),
        case("no tokens", (0,), 3, 2),
    ]


def _step_by_chance(draw: Draw) -> Case:
    batch, width, size = draw.one_of((2,), (), (2, 2)), draw.one_of(3, 2), draw.one_of(3, 4)
    options = {"sparsity": draw.one_of(0.2, 0.7)}
    return Case(
        "sizes by chance", _codes(draw.numbers, batch, width, size, **options), any_dtype(draw)
    )


def _objective(codes: np.ndarray, given: dict[str, Any]) -> np.ndarray:
    residual = given["x"] - codes @ given["dictionary"].T
    return (residual**2).sum(-1) / 2 + given["sparsity"] * np.abs(codes).sum(-1)


def _lowers(run: Run, case: Case) -> Problem | None:
    given = case.arrays()
    before = _objective(given["codes"], given)
    after = _objective(run.value(case), given)
    steep = 1 / given["step_size"]
    far = float(_slack(run, case)) * case.arguments["dictionary"].size * (1 + steep)
    rose = (after - before).astype(np.float64)
    if (rose > far * (1 + np.abs(before).max())).any():
        return Problem("an objective that does not rise", f"a rise of {rose.max():.3g}")
    return None


def _small_codes_are_zero(run: Run, case: Case) -> Problem | None:
    """Where a token is 0, zero codes stay zero: their gradient is below the threshold."""
    given = case.arguments
    zeros = {"x": np.zeros_like(given["x"]), "codes": np.zeros_like(given["codes"])}
    got = run.value(case, **zeros)
    return compare(np.zeros_like(got), got, 0.0, "the codes of zeros")


def _solution_stays(run: Run, case: Case) -> Problem | None:
    """With the identity as dictionary the best codes are max(0, x - sparsity): a step from them leads nowhere."""
    given = case.arguments
    width, sparsity = given["x"].shape[-1], given.get("sparsity", 0.1)
    best = np.maximum(0.0, given["x"] - sparsity)
    got = run.value(case, codes=best, dictionary=np.eye(width), step_size=0.5)
    slack = case.rounding(width + 4) * (1 + float(np.abs(given["x"]).max(initial=0.0)) + sparsity)
    return compare(best, got, slack, "a step from the best codes")


ISTA_STEP = Spec(
    name="ista_step",
    statement="ista_step(codes, x, dictionary, *, step_size, sparsity): max(0, codes + step_size (x - codes "
    "dictionary^T) dictionary - step_size sparsity). codes (*batch, F), x (*batch, D), dictionary (D, F) -> (*batch, F)",
    required=("codes", "x", "dictionary"),
    reference=reference.ista_step,
    baseline=mutants.StepFormula(),
    cases=_step_cases,
    combine=_step_by_chance,
    num_drawn=4,
    checks=(
        Check("zeros stay zeros", "Zero is its own best code.", _small_codes_are_zero),
        Check(
            "the objective does not rise",
            "From codes of no negative number, half the squared error plus sparsity |codes| falls or stays.",
            _lowers,
            when=lambda case: not case.is_empty and (case.arguments["codes"] >= 0).all(),
        ),
        Check(
            "the best codes stay",
            "With the identity as dictionary, max(0, x - sparsity) is the minimum whatever the step size is.",
            _solution_stays,
        ),
    ),
    mutants=mistakes_in(mutants, "ista_step"),
    chapter=21,
)  # fmt: skip
