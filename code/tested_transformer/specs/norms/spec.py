"""The Specs of the norms: a function of x and its scale, or a module that has learned them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from ... import reference
from ...errors import argument_error
from ..compare import Problem, compare
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants
from .mutants import plain_layer_norm, plain_rms_norm

FAR = 3.0  # what a neighbor is moved by
EXACT = 1e-9


def build(candidate: Any, arguments: dict[str, Any]) -> Any:
    """A function of x, weight and perhaps bias; a module gets them as its parameters."""
    if not (isinstance(candidate, type) and issubclass(candidate, nn.Module)):
        return candidate
    default = 1e-5 if "bias" in arguments else 1e-6
    eps = arguments.get("eps", default)
    module = candidate(arguments["x"].shape[-1], eps=eps).to(arguments["x"].dtype)
    return partial(_with_weights, module)


def _with_weights(
    module: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None = None, **given: float
) -> Tensor:
    """Call the module with this scale and shift in place of its own."""
    parameters = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    own = {name for name, _ in module.named_parameters()}
    for name in parameters:
        if name not in own:
            wanted = f"an nn.Parameter named `{name}`, made in __init__"
            raise argument_error(TypeError, "the module", f"parameters {sorted(own)}", wanted)
    return functional_call(module, parameters, (x,), strict=True)


def _cases(*names: str):
    """Cases with these arguments beside x: weight, or weight and bias."""

    def cases(rng: np.random.Generator) -> list[Case]:

        def case(label, *shape, spread=1.0, shift=0.0, dtype=torch.float64, **options) -> Case:
            arguments = {"x": shift + spread * rng.normal(size=shape)}
            arguments |= {name: rng.normal(size=shape[-1]) for name in names}
            return Case(label, arguments | options, dtype)

        equal = case("equal numbers", 2, 4)
        equal.arguments["x"][...] = [[0.0], [5.0]]
        return [
            case("one token", 1, 3),
            case("no batch axis", 4),
            case("tokens", 4, 3),
            case("as many tokens as features", 5, 5),
            case("samples", 2, 3, 5),
            case("samples and heads", 2, 3, 4, 6),
            case("one feature", 3, 1),
            case("no tokens", 2, 0, 4),
            equal,
            case("far from zero", 3, 6, shift=50.0),
            case("numbers near sqrt(eps)", 3, 6, spread=2e-3),
            case("a large eps", 3, 5, eps=0.1),
            case("float32", 2, 3, 8, dtype=torch.float32),
            case("float32, far from zero", 2, 8, shift=3000.0, dtype=torch.float32),
            case("bfloat16", 3, 16, dtype=torch.bfloat16),
            case("float16", 3, 8, dtype=torch.float16),
            case("float16, large", 2, 8, spread=400.0, dtype=torch.float16),
        ]

    return cases


# --- What can be read off an answer ---------------------------------------------------------------


def _bare(run: Run, case: Case, **changes: Any) -> np.ndarray:
    """The answer with scale 1 and shift 0."""
    ones = np.ones_like(case.arguments["weight"])
    plain = {"weight": ones} | ({"bias": 0 * ones} if "bias" in case.arguments else {})
    return run.value(case, **plain, **changes)


def _eps(case: Case, default: float) -> float:
    return case.arguments.get("eps", default)


def _exact(case: Case) -> bool:
    """Little rounding, and some spread in every token."""
    x = case.arguments["x"]
    return case.dtype == torch.float64 and x.size > 0 and bool((x.std(-1) > 0).all())


def _neighbors(run: Run, case: Case) -> Problem | None:
    """Move every token but the first: the first must not notice."""
    x = case.arguments["x"]
    moved = x.reshape(-1, x.shape[-1]).copy()
    moved[1:] = FAR - 2 * moved[1:]
    before = run.value(case).reshape(moved.shape)[0]
    after = run.value(case, x=moved.reshape(x.shape)).reshape(moved.shape)[0]
    return compare(before, after, 2 * run.expected(case)[1] + EXACT)


def _affine(run: Run, case: Case) -> Problem | None:
    wanted = _bare(run, case) * case.arguments["weight"] + case.arguments.get("bias", 0.0)
    return compare(wanted, run.value(case), EXACT * (1 + np.abs(wanted).max()))


def _finite(run: Run, case: Case) -> Problem | None:
    value = run.value(case)
    return None if np.isfinite(value).all() else Problem("finite numbers", "NaN or inf")


def _centered(run: Run, case: Case) -> Problem | None:
    means = _bare(run, case).mean(-1, keepdims=True)
    return compare(np.zeros_like(means), means, EXACT, "means")


def _ample(case: Case) -> bool:
    """Is the spread so large that eps plays no part?"""
    return _exact(case) and bool((case.arguments["x"].std(-1) > 0.1).all())


def _small(case: Case) -> bool:
    """Is it about eps, and not about the last digit?"""
    return _exact(case) and bool(np.abs(case.arguments["x"]).max() < 0.1)


def _unit_variance(run: Run, case: Case) -> Problem | None:
    scale = 10 / case.arguments["x"].std(-1, keepdims=True).min()
    spread = _bare(run, case, x=scale * case.arguments["x"]).var(-1, keepdims=True)
    return compare(np.ones_like(spread), spread, 0.03 if _eps(case, 0.0) else 1e-3, "variances")


def _unit_square(run: Run, case: Case) -> Problem | None:
    squares = (_bare(run, case, x=10 * case.arguments["x"]) ** 2).mean(-1, keepdims=True)
    return compare(np.ones_like(squares), squares, 1e-3, "mean squares")


def _loud(case: Case) -> bool:
    x = case.arguments["x"]
    return _exact(case) and not _eps(case, 0.0) and bool(((10 * x) ** 2).mean(-1).min() > 0.1)


def _root(run: Run, case: Case) -> Problem | None:
    """What remains of the spread: var / (var + eps), with eps inside the root."""
    spread = case.arguments["x"].var(-1, keepdims=True)
    wanted = spread / (spread + _eps(case, 1e-5))
    return compare(wanted, _bare(run, case).var(-1, keepdims=True), 1e-4, "variances")


def _root_of_squares(run: Run, case: Case) -> Problem | None:
    squares = (case.arguments["x"] ** 2).mean(-1, keepdims=True)
    wanted = squares / (squares + _eps(case, 1e-6))
    return compare(wanted, (_bare(run, case) ** 2).mean(-1, keepdims=True), 1e-4, "mean squares")


def _shifted(run: Run, case: Case) -> Problem | None:
    """x and x less a constant are one token to a LayerNorm, in float32 too."""
    near = run.value(case, x=case.arrays()["x"] - 3000.0)
    return compare(near, run.value(case), 2e-3 * (1 + np.abs(near).max()))


def _half(run: Run, case: Case) -> Problem | None:
    squares = (_bare(run, case) ** 2).mean(-1, keepdims=True)
    return compare(np.ones_like(squares), squares, 0.05, "mean squares")


def _direction(run: Run, case: Case) -> Problem | None:
    """The answer, bare, is the token times one number."""
    x, value = case.arguments["x"], _bare(run, case)
    factor = (x * value).sum(-1, keepdims=True) / (x * x).sum(-1, keepdims=True)
    return compare(factor * x, value, EXACT)


ALONE = Check(
    "a token sees only itself",
    "The mean and the variance are those of the token's own D numbers: the last axis, no other.",
    _neighbors,
    when=lambda case: _exact(case) and case.arguments["x"].size > case.arguments["x"].shape[-1],
)
SCALE = Check(
    "scale and shift come last",
    "The answer is the normalized token times weight plus bias: learned, one number a feature.",
    _affine,
    when=_exact,
)
FINITE = Check(
    "no division by zero",
    "A token of equal numbers has no spread: eps keeps the root above 0.",
    _finite,
)
HALF = Check(
    "float16 does not overflow",
    "The squares of float16 numbers above 256 do not fit into float16: compute in float32.",
    _half,
    when=lambda case: case.label == "float16, large",
)

LAYER_CHECKS = (
    ALONE,
    SCALE,
    Check("the mean is 0", "LayerNorm subtracts the mean of each token.", _centered, when=_exact),
    Check(
        "the variance is 1",
        "The variance divides the sum of squares by D, not by D - 1, and its root divides.",
        _unit_variance,
        when=_ample,
    ),
    FINITE,
    Check(
        "eps is inside the root",
        "sqrt(var + eps), not sqrt(var) + eps: it shows where the variance is not far above eps.",
        _root,
        when=_small,
    ),
    Check(
        "a shift changes nothing",
        "Subtract the mean first, then square: the mean of squares less the squared mean cancels.",
        _shifted,
        when=lambda case: case.label == "float32, far from zero",
    ),
    HALF,
)
RMS_CHECKS = (
    ALONE,
    replace(
        SCALE,
        name="the scale comes last",
        explain="The answer is the normalized token times weight: learned, one number a feature.",
    ),
    Check(
        "the direction stays",
        "Each token is divided by one number; its mean is not subtracted.",
        _direction,
        when=_exact,
    ),
    Check(
        "the mean square is 1",
        "Divide by the root of the mean of the squares: the mean over D, not the sum.",
        _unit_square,
        when=_loud,
    ),
    FINITE,
    Check(
        "eps is inside the root",
        "sqrt(mean of squares + eps), not the root plus eps.",
        _root_of_squares,
        when=_small,
    ),
    HALF,
)

LAYER_NORM = Spec(
    name="layer_norm",
    statement="(x - mean) / sqrt(var + eps) weight + bias, mean and variance over the last axis.\n"
    "x (*batch, D), weight and bias (D), eps=1e-5 -> (*batch, D). A function of (x, weight, bias,\n"
    "*, eps), or a module class(d_model, *, eps) with parameters `weight` and `bias`.",
    required=("x", "weight", "bias"),
    reference=reference.layer_norm,
    baseline=plain_layer_norm,
    cases=_cases("weight", "bias"),
    checks=LAYER_CHECKS,
    mutants=mistakes_in(mutants, of="layer_norm"),
    build=build,
    chapter=7,
)
RMS_NORM = Spec(
    name="rms_norm",
    statement="x / sqrt(mean(x^2) + eps) weight, the mean over the last axis.\n"
    "x (*batch, D), weight (D), eps=1e-6 -> (*batch, D). A function of (x, weight, *, eps), or a\n"
    "module class(d_model, *, eps) with the parameter `weight`.",
    required=("x", "weight"),
    reference=reference.rms_norm,
    baseline=plain_rms_norm,
    cases=_cases("weight"),
    checks=RMS_CHECKS,
    mutants=mistakes_in(mutants, of="rms_norm"),
    build=build,
    chapter=7,
)
NORM_SPECS = (LAYER_NORM, RMS_NORM)
