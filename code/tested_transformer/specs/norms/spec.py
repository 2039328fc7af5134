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
from ..checks import DTYPES, SIZES, either_mode, is_module_class, largest, tolerance, transposed
from ..compare import Problem, as_array, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import GRADIENTS, Case, Check, Run, Spec, finite
from ..surroundings import kept
from . import mutants
from .mutants import plain_layer_norm, plain_rms_norm

FAR = 3.0  # what a neighbor is moved by


def build(candidate: Any, arguments: dict[str, Any], training: bool = True) -> Any:
    """A function of x, weight and perhaps bias; a module gets them as its parameters."""
    if not is_module_class(candidate):
        return candidate
    return partial(_with_weights, made(candidate, arguments).train(training))


def made(candidate: Any, arguments: dict[str, Any]) -> nn.Module:
    """A module for x, fresh."""
    default = 1e-5 if "bias" in arguments else 1e-6
    eps = arguments.get("eps", default)
    return candidate(arguments["x"].shape[-1], eps=eps).to(arguments["x"].dtype)


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
            case("bfloat16, far from zero", 8, 12, spread=4.0, shift=1000.0, dtype=torch.bfloat16),
            case("float16", 3, 8, dtype=torch.float16),
            case("float16, large", 2, 8, spread=400.0, dtype=torch.float16),
            case("more features than 512", 2, 600),
        ]

    return cases


def _drawn(*names: str):
    """A case by chance: axes, dtype, eps, layout, and a scale with a 0 and numbers below it."""

    def draw_case(draw: Draw) -> Case:
        dtype = draw.one_of(*DTYPES)
        half = torch.finfo(dtype).bits == 16
        shape = [draw.one_of(*SIZES) for _ in range(draw.one_of(1, 2, 3, 4))]
        shape[-1] = max(shape[-1], 2) if half else shape[-1]
        x = draw.numbers.normal(size=shape)
        if half:  # kernels keep a token's mean in 16 bits: it must not be large beside the spread
            x = 0.1 * x + np.arange(shape[-1]) - shape[-1] / 2
        else:
            x = draw.one_of(0.0, 10.0) + draw.one_of(1.0, 0.1, 30.0) * x
        arguments = transposed({"x": x}) if draw.one_of(False, True) else {"x": x}
        arguments |= {name: draw.numbers.normal(size=shape[-1]) for name in names}
        if draw.one_of(False, True):
            arguments["weight"][0] = 0.0
        least = (
            1e-3 if half or shape[-1] == 1 else 1e-12
        )  # one feature's variance is rounding alone
        if eps := draw.maybe(lambda: draw.one_of(0.3, least)):
            arguments["eps"] = eps
        return Case("drawn", arguments, dtype)

    return draw_case


# --- What can be read off an answer ---------------------------------------------------------------


def _plain(case: Case) -> dict[str, np.ndarray]:
    """Scale 1 and shift 0."""
    ones = np.ones_like(case.arguments["weight"])
    return {"weight": ones} | ({"bias": 0 * ones} if "bias" in case.arguments else {})


def _bare(run: Run, case: Case, **changes: Any) -> tuple[np.ndarray, float]:
    """The answer with scale 1 and shift 0, and how far rounding takes it."""
    bare = run.value(case, **_plain(case), **changes)
    return bare, tolerance(run, case, bare, **_plain(case), **changes)


def _eps(case: Case) -> float:
    return case.arguments.get("eps", 1e-5 if "bias" in case.arguments else 1e-6)


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
    far = 2 * run.expected(case)[1]
    return unchanged(before, after, far, "other tokens change", "the first token's answer")


def _affine(run: Run, case: Case) -> Problem | None:
    bare, far = _bare(run, case)
    weight, bias = case.arguments["weight"], case.arguments.get("bias", 0.0)
    far = 2 * run.expected(case)[1] + far * largest(weight)
    return unchanged(bare * weight + bias, run.value(case), far, "scale and shift go inside")


def _centered(run: Run, case: Case) -> Problem | None:
    bare, far = _bare(run, case)
    means = bare.mean(-1, keepdims=True)
    return compare(np.zeros_like(means), means, far, "means")


def _ample(case: Case) -> bool:
    """Is there a spread that can be made so large that eps plays no part?"""
    return _exact(case) and bool((case.arguments["x"].std(-1) > 0.1).all())


def _small(case: Case) -> bool:
    """Is it about eps, and not about the last digit?"""
    return _exact(case) and bool(np.abs(case.arguments["x"]).max() < 0.1)


def _squares(answer: np.ndarray, far: float) -> tuple[np.ndarray, float]:
    """The mean squares of an answer, and how far they are off where each number is off by `far`."""
    return (answer**2).mean(-1, keepdims=True), far * (2 * largest(answer) + far)


def _unit_variance(run: Run, case: Case) -> Problem | None:
    """At a std of 10 or more eps takes eps / 100 of the variance; beside the root, eps / 5."""
    scale = 10 / case.arguments["x"].std(-1, keepdims=True).min()
    bare, far = _bare(run, case, x=scale * case.arguments["x"])
    squares, far = _squares(bare - bare.mean(-1, keepdims=True), 2 * far)
    return compare(np.ones_like(squares), squares, _eps(case) / 4 + far, "variances")


def _unit_square(run: Run, case: Case) -> Problem | None:
    """As for the variance."""
    scale = 10 / np.sqrt((case.arguments["x"] ** 2).mean(-1, keepdims=True).min())
    squares, far = _squares(*_bare(run, case, x=scale * case.arguments["x"]))
    return compare(np.ones_like(squares), squares, _eps(case) / 4 + far, "mean squares")


def _root(run: Run, case: Case) -> Problem | None:
    """What remains of the spread: var / (var + eps), with eps inside the root."""
    spread = case.arguments["x"].var(-1, keepdims=True)
    bare, far = _bare(run, case)
    squares, far = _squares(bare - bare.mean(-1, keepdims=True), 2 * far)
    return compare(spread / (spread + _eps(case)), squares, far, "variances")


def _root_of_squares(run: Run, case: Case) -> Problem | None:
    size = (case.arguments["x"] ** 2).mean(-1, keepdims=True)
    squares, far = _squares(*_bare(run, case))
    return compare(size / (size + _eps(case)), squares, far, "mean squares")


def _shifted(run: Run, case: Case) -> Problem | None:
    """x and x less a constant are one token to a LayerNorm, in float32 too."""
    x = case.arrays()["x"] - 3000.0
    near = run.value(case, x=x)
    far = run.expected(case)[1] + tolerance(run, case, near, x=x)
    return unchanged(near, run.value(case), far, "3000 is added to x")


def _half(run: Run, case: Case) -> Problem | None:
    squares, far = _squares(*_bare(run, case))
    return compare(np.ones_like(squares), squares, far, "mean squares")


def _direction(run: Run, case: Case) -> Problem | None:
    """The answer, bare, is the token times one number."""
    x, (bare, far) = case.arguments["x"], _bare(run, case)
    factor = (x * bare).sum(-1, keepdims=True) / (x * x).sum(-1, keepdims=True)
    return compare(0 * bare, bare - factor * x, 2 * far, "the part that does not lie along x")


def _fresh(run: Run, case: Case) -> Problem | None:
    """A module as it is made: scale 1, shift 0."""
    if not is_module_class(run.candidate):
        return None
    given = case.tensors()
    with kept():
        answer = as_array(made(run.candidate, given)(given["x"]))
    expected = run.spec.expected(case, **_plain(case))
    far = tolerance(run, case, expected, **_plain(case))
    return compare(expected, answer, far, "a new module's answer")


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
    finite,
)
HALF = Check(
    "float16 does not overflow",
    "The squares of float16 numbers above 256 do not fit into float16: compute in float32.",
    _half,
    when=lambda case: case.label == "float16, large",
)

FRESH = Check(
    "a new module only normalizes",
    "The parameters of a module start at 1 and 0: `weight` at 1, `bias` at 0.",
    _fresh,
    when=_ample,
)
EITHER_MODE = either_mode(_ample)
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
    FRESH,
    EITHER_MODE,
    # torch's own LayerNorm rounds x - mean to bfloat16 on its way back, far from zero by a fifth.
    replace(GRADIENTS, when=lambda case: GRADIENTS.when(case) and "16, far" not in case.label),
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
        when=_ample,
    ),
    FINITE,
    Check(
        "eps is inside the root",
        "sqrt(mean of squares + eps), not the root plus eps.",
        _root_of_squares,
        when=_small,
    ),
    HALF,
    FRESH,
    EITHER_MODE,
)


def _long_mean(case: Case) -> float:
    """A mean by a matrix product rounds once per feature, which adds up to the root of their number."""
    x, weight = case.arguments["x"], case.arguments["weight"]
    if not x.size or x.shape[-1] <= 512:
        return 0.0
    eps = torch.finfo(case.dtype).eps
    return float(x.shape[-1] ** 0.5 * eps * largest(x) * largest(weight) / x.std(-1).min())


LAYER_NORM = Spec(
    name="layer_norm",
    statement="(x - mean) / sqrt(var + eps) weight + bias, mean and variance over the last axis.\n"
    "x (*batch, D), weight and bias (D), eps=1e-5 -> (*batch, D). A function of (x, weight, bias,\n"
    "*, eps), or a module class(d_model, *, eps) with parameters `weight` and `bias`.\n"
    "Half precision is computed in float32 and rounded at the end.",
    required=("x", "weight", "bias"),
    reference=reference.layer_norm,
    baseline=plain_layer_norm,
    slack=_long_mean,
    cases=_cases("weight", "bias"),
    combine=_drawn("weight", "bias"),
    num_drawn=6,
    checks=LAYER_CHECKS,
    mutants=mistakes_in(mutants, of="layer_norm"),
    build=build,
    chapter=7,
)
RMS_NORM = Spec(
    name="rms_norm",
    statement="x / sqrt(mean(x^2) + eps) weight, the mean over the last axis.\n"
    "x (*batch, D), weight (D), eps=1e-6 -> (*batch, D). A function of (x, weight, *, eps), or a\n"
    "module class(d_model, *, eps) with the parameter `weight`. Half precision is computed in\n"
    "float32 and rounded at the end.",
    required=("x", "weight"),
    reference=reference.rms_norm,
    baseline=plain_rms_norm,
    cases=_cases("weight"),
    combine=_drawn("weight"),
    num_drawn=6,
    checks=RMS_CHECKS,
    mutants=mistakes_in(mutants, of="rms_norm"),
    build=build,
    chapter=7,
)
