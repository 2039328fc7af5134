"""The Specs of the feed-forward network: functions of x and the weights, or modules of named layers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from ... import reference
from ...errors import BackendError, argument_error
from ..checks import (
    DTYPES,
    HAIR,
    SIZES,
    changed,
    either_mode,
    is_module_class,
    largest,
    lets_go,
    nan_stays,
    same_after,
    scaled_by_dropout,
    tolerance,
    transposed,
)
from ..compare import Problem, compare, unchanged
from ..draw import Draw, attempts
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from ..surroundings import seeded
from . import mutants
from .mutants import FeedForwardFormula, SwigluFormula

STATEMENT = """activation(x w_up + b_up) w_down + b_down, each token alone.
x (*batch, D), w_up (D, d_ff), w_down (d_ff, D) -> (*batch, D).
A function of (x, w_up, b_up, w_down, b_down[, activation]), or a module class(d_model,
d_ff[, activation, dropout]) whose layers `up_proj` and `down_proj` are nn.Linear or nn.Conv1d with
kernel 1; forward takes x; in training, and only there, dropout acts on the hidden features.
activation: "relu" unless given; "gelu" (exact), "gelu_tanh", "silu"."""

SWIGLU_STATEMENT = """(silu(x w_gate) * (x w_up)) w_down, each token alone.
x (*batch, D), w_gate and w_up (D, d_ff), w_down (d_ff, D) -> (*batch, D).
A function of (x, w_gate, w_up, w_down), or a module class(d_model, d_ff[, activation, bias])
whose layers `gate_proj`, `up_proj` and `down_proj` are nn.Linear or nn.Conv1d with kernel 1, without bias."""

ALL = 1 - 2.0**-40  # dropout of everything
MATRICES = ("w_gate", "w_up", "w_down")


def build(
    candidate: Any, arguments: dict[str, Any], training: bool = False, **always: Any
) -> Callable[..., Any]:
    """A function of x and the weights; a module gets them in place of its own."""
    if not is_module_class(candidate):
        if "dropout" in arguments:
            raise BackendError("a function has no training mode")
        return candidate
    module = made(candidate, arguments, **always)
    with torch.no_grad():
        module(arguments["x"].detach())  # layers whose own sizes do not fit raise here
    names = [name for name in arguments if name.startswith(("w_", "b_"))]
    return partial(_with_weights, module.train(training), names)


def made(candidate: Any, arguments: dict[str, Any], **always: Any) -> nn.Module:
    """A module for x, fresh."""
    takes = inspect.signature(candidate).parameters
    options = {n: arguments[n] for n in ("activation", "dropout") if n in arguments} | always
    given = {name: option for name, option in options.items() if name in takes}
    with seeded(0):
        return candidate(*arguments["w_up"].shape, **given).to(arguments["x"].dtype)


def _with_weights(
    module: nn.Module, names: list[str], x: Tensor, *arrays: Tensor, **options: Any
) -> Tensor:
    """Call the module with these weights in place of its own."""
    weights = {}
    for name, array in zip(names, arrays, strict=True):
        layer = f"{name[2:]}_proj"
        kind = "weight" if name in MATRICES else "bias"
        own = getattr(getattr(module, layer, None), kind, None)
        if own is None:
            came = f"no layer `{layer}` with a {kind}"
            raise argument_error(TypeError, "the module", came, f"an nn.Linear named `{layer}`")
        turned = array.mT if kind == "weight" else array
        weights[f"{layer}.{kind}"] = turned.reshape(own.shape)
    for name, own in module.named_parameters():
        if name not in weights and own.requires_grad:
            wanted = f"no other parameters than {', '.join(weights)}"
            raise argument_error(TypeError, "the module", f"`{name}`", wanted)
    return functional_call(module, weights, (x,))


def _arrays(rng: np.random.Generator, d_model: int, d_ff: int, names: str) -> dict[str, Any]:
    """Weights of those names, of a size that keeps numbers near 1."""
    shapes = {
        "w_gate": (d_model, d_ff), "w_up": (d_model, d_ff), "b_up": (d_ff,),
        "w_down": (d_ff, d_model), "b_down": (d_model,),
    }  # fmt: skip
    return {name: rng.normal(size=shapes[name]) * shapes[name][0] ** -0.5 for name in names.split()}


def _arguments(
    rng: np.random.Generator, shape: Sequence[int], d_ff: int, names: str, spread: float = 1.0
) -> dict[str, Any]:
    """The tokens and weights of those names."""
    return {"x": spread * rng.normal(size=shape)} | _arrays(rng, shape[-1], d_ff, names)


def _off_the_kink(case: Case, rng: np.random.Generator) -> Case:
    """Another first bias for each unit of which rounding could push a token over ReLU's kink.

    There the slope is 0 on one side and 1 on the other, and both are right.
    """
    bias, d_model = case.arguments["b_up"], case.arguments["x"].shape[-1]
    for _ in attempts():
        a = case.wide_tensors()
        sums, sizes = a["x"] @ a["w_up"], a["x"].abs() @ a["w_up"].abs() + a["b_up"].abs()
        close = (sums + a["b_up"]).abs() <= case.rounding(d_model) / 2 * sizes
        units = close.reshape(-1, len(bias)).any(0).numpy()
        if not units.any():
            return case
        bias[units] = 3 * rng.normal(size=units.sum())


NAMES = "w_up b_up w_down b_down"


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, shape, d_ff, dtype=torch.float64, spread=1.0, **options) -> Case:
        arguments = _arguments(rng, shape, d_ff, NAMES, spread)
        arguments["b_up"] = rng.normal(size=d_ff)  # kinks far from 0
        return _off_the_kink(Case(label, arguments | options, dtype), rng)

    return [
        case("one token", (1, 2), 3),
        case("two tokens", (2, 3), 5),
        case("as many tokens as hidden units", (6, 2), 6),
        case("narrower than the tokens", (3, 4), 2),
        case("no token", (0, 3), 4),
        case("a batch", (2, 4, 3), 7),
        case("two batch axes", (2, 3, 5, 4), 9),
        case("one token without other axes", (5,), 6),
        case("GELU", (4, 3), 8, activation="gelu"),
        case("GELU by tanh", (3, 5), 6, activation="gelu_tanh"),
        case("SiLU", (3, 2), 7, activation="silu"),
        case("with dropout", (4, 3), 8, dropout=0.5),
        case("float32", (2, 3, 6), 8, torch.float32),
        case("GELU in float32", (2, 5, 3), 7, torch.float32, activation="gelu"),
        case("bfloat16", (5, 4), 6, torch.bfloat16),
        case("float16", (4, 3), 5, torch.float16),
        case("large numbers", (2, 3), 4, spread=2000.0),
        case("large numbers, GELU", (2, 3), 4, spread=2000.0, activation="gelu"),
        case("large numbers, GELU by tanh", (2, 3), 4, spread=2000.0, activation="gelu_tanh"),
        case("large numbers, SiLU", (2, 3), 4, spread=2000.0, activation="silu"),
        case("large numbers, float32", (2, 3), 4, torch.float32, 300.0, activation="silu"),
        case("more tokens than 512", (520, 2), 2),
        case("more hidden units than 512", (1, 2), 520),
    ]


def _drawn(draw: Draw) -> Case:
    """A case by chance: axes, sizes, activation, dtype and layout."""
    shape = [draw.one_of(*SIZES) for _ in range(draw.one_of(1, 2, 3, 4))]
    arguments = _arguments(draw.numbers, shape, draw.one_of(3, 1, 7), NAMES)
    arguments = transposed(arguments) if draw.one_of(False, True) else arguments
    if activation := draw.one_of(None, "gelu", "gelu_tanh", "silu", "relu"):
        arguments["activation"] = activation
    return _off_the_kink(Case("drawn", arguments, draw.one_of(*DTYPES)), draw.numbers)


def _several(case: Case) -> bool:
    """Are there tokens that could be mixed?"""
    shape = case.arguments["x"].shape
    return len(shape) > 1 and shape[-2] > 1


def _exact(case: Case) -> bool:
    """Is rounding too small to matter, and is there a token?"""
    return case.dtype == torch.float64 and case.arguments["x"].size > 0


def _alone(run: Run, case: Case) -> Problem | None:
    """Change the last token of each sequence: no other answer may move."""
    x = case.arguments["x"].copy()
    x[..., -1, :] = -x[..., -1, :] + 1
    before, after = run.value(case)[..., :-1, :], run.value(case, x=x)[..., :-1, :]
    return unchanged(before, after, 2 * run.expected(case)[1], "the last token changes")


def _order(run: Run, case: Case) -> Problem | None:
    turned = run.value(case, x=np.flip(case.arguments["x"], -2).copy())
    before, after = run.value(case), np.flip(turned, -2)
    return unchanged(before, after, 2 * run.expected(case)[1], "the tokens are reversed")


def _off(run: Run, case: Case) -> Problem | None:
    without = run.value(case, dropout=0.0)
    return unchanged(without, run.value(case), 2 * run.expected(case)[1], "dropout is set")


def _on(run: Run, case: Case) -> Problem | None:
    """In training, with everything dropped, no token can count."""
    training = Run(_trained(run), run.candidate)
    one, other = (
        training.value(case, dropout=ALL, x=x) for x in (case.arguments["x"], -case.arguments["x"])
    )
    when = "everything is dropped and the tokens are others"
    return unchanged(one, other, 2 * run.expected(case)[1], when)


def _trained(run: Run) -> Spec:
    """The Spec with modules in training."""
    return replace(run.spec, build=partial(build, training=True))


def _by_a_hair(run: Run, case: Case) -> Problem | None:
    def hidden_scaled(dropout: float, w_down: Tensor, **given: Any) -> Tensor:
        return FeedForwardFormula()(w_down=w_down / (1 - dropout), **given)

    hair = changed(case, dropout=HAIR)
    return scaled_by_dropout(run, case, hair, _trained(run), hidden_scaled)


def _activated(run: Run, case: Case) -> Problem | None:
    """f(x) + f(-x) - 2 f(0) is 0 for every network without an activation; far out, every unit passes its kink."""
    x = 100 * case.arguments["x"]
    values = [run.value(case, x=factor * x) for factor in (1.0, -1.0, 0.0)]
    gap = largest(values[0] + values[1] - 2 * values[2])
    straight = gap <= 4 * tolerance(run, case, values[0], x=x)
    if not np.isfinite(values).all():
        return Problem("numbers far out too", "NaN or inf")
    return Problem("f(x) + f(-x) other than 2 f(0)", "equal: a line") if straight else None


def _last_word(run: Run, case: Case) -> Problem | None:
    """What is added to the last bias is added to the answer."""
    moved = run.value(case, b_down=case.arguments["b_down"] - 10)
    far = run.expected(case)[1] + tolerance(run, case, moved, b_down=case.arguments["b_down"] - 10)
    return unchanged(run.value(case), moved + 10, far, "b_down is 10 less", "f, 10 added again,")


def _curve(run: Run, case: Case) -> Problem | None:
    """One unit and weights of 1: the answer is the curve of the activation."""
    ones = {name: np.ones((1, 1)) for name in MATRICES if name in case.arguments}
    zeros = {name: np.zeros(1) for name in ("b_up", "b_down") if name in case.arguments}
    arguments = {"x": np.array([[-30.0], [-2], [-0.5], [0], [0.5], [2], [30]])} | ones | zeros
    expected = run.spec.expected(case, **arguments)
    far = tolerance(run, case, expected, **arguments)
    return compare(expected, run.value(case, **arguments), far, "f(-30), f(-2) ... f(2), f(30)")


def _can_learn(run: Run, case: Case) -> Problem | None:
    if not is_module_class(run.candidate):
        return None
    module = run.spec.build(run.candidate, case.tensors()).args[0]
    for name, weight in module.named_parameters():
        if weight.ndim > 1 and bool((weight == weight.flatten()[0]).all()):
            return Problem(f"`{name}` of a new module to be random", "one number everywhere")
    return None


def _other_size(case: Case) -> dict[str, Any]:
    """More tokens."""
    x = case.arguments["x"]
    return {"x": np.concatenate([x, x[..., :1, :]], axis=-2)}


ALONE = Check(
    "each token alone",
    "The answer for a token may depend on that token only: no window, no sum over the sequence.",
    _alone,
    when=_several,
)
ORDER = Check(
    "reordered tokens, reordered answers",
    "All tokens pass through the same weights: turned round, the answers turn round.",
    _order,
    when=_several,
)
CURVE = Check(
    "the activation that is asked for",
    "One feature, one unit and weights of 1 show the activation's curve: it is another one.",
    _curve,
    when=lambda case: _exact(case) and "dropout" not in case.arguments,
)
CAN_LEARN = Check(
    "a new module can learn",
    "Weights that all start equal stay equal: draw them at random.",
    _can_learn,
    when=lambda case: case.label == "two tokens",
)
OTHER_SIZE = same_after(
    "calls of other sizes",
    _other_size,
    lambda case: _exact(case) and _several(case) and "dropout" not in case.arguments,
)
_PLAIN = ("one token", "two tokens", "a batch")
EITHER_MODE = either_mode(lambda case: _exact(case) and "dropout" not in case.arguments)
LETS_GO = lets_go(lambda case: case.label in _PLAIN)
NAN_STAYS = nan_stays(lambda case: case.label in _PLAIN)

CHECKS = (
    Check(
        "no dropout in evaluation",
        "A module in evaluation drops nothing: give functional.dropout training=self.training.",
        _off,
        needs=("dropout",),
    ),
    ALONE,
    ORDER,
    Check(
        "no activation after the second layer",
        "Nothing may follow the second layer: what b_down adds is added to the answer.",
        _last_word,
        when=_exact,
    ),
    Check(
        "an activation between the layers",
        "Without an activation in between, two linear layers are one linear layer.",
        _activated,
        when=_exact,
    ),
    Check(
        "dropout acts in training",
        "In training hidden features are dropped, with the probability that is given.",
        _on,
        needs=("dropout",),
    ),
    Check(
        "dropout scales what it keeps",
        "Hidden features that are kept are divided by 1 - dropout, and nothing else is scaled.",
        _by_a_hair,
        needs=("dropout",),
    ),
    CURVE,
    CAN_LEARN,
    OTHER_SIZE,
    EITHER_MODE,
    LETS_GO,
    NAN_STAYS,
)


def _slow(x, w_up, b_up, w_down, b_down, activation="relu", dropout=0.0):
    """The reference; in evaluation dropout is nothing."""
    return reference.feed_forward(x, w_up, b_up, w_down, b_down, activation)


def _long_sum(case: Case) -> float:
    """A sum of more than 512 hidden units: the root of their number times what all of them come to.

    The rounding of partial sums that cancel later shows in no operand: Higham and Mary 2019, as in
    rounding.py.
    """
    a = case.wide_tensors()
    num_units = len(a["b_up"])
    if num_units <= 512:
        return 0.0
    sizes = (a["x"].abs() @ a["w_up"].abs() + a["b_up"].abs()) @ a["w_down"].abs()
    return num_units**0.5 * torch.finfo(case.dtype).eps / 2 * float(sizes.max())


FEED_FORWARD = Spec(
    name="feed_forward",
    may_refuse=True,
    statement=STATEMENT,
    required=("x", "w_up", "b_up", "w_down", "b_down"),
    reference=_slow,
    baseline=lambda *a, dropout=None, **k: FeedForwardFormula()(*a, **k),
    cases=_cases,
    combine=_drawn,
    num_drawn=6,
    checks=CHECKS,
    mutants=mistakes_in(mutants, of="feed_forward"),
    build=build,
    chapter=8,
    slack=_long_sum,
)

# --- SwiGLU ---------------------------------------------------------------------------------------


GATED = "w_gate w_up w_down"


def _swiglu_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, shape, d_ff, dtype=torch.float64, spread=1.0) -> Case:
        return Case(label, _arguments(rng, shape, d_ff, GATED, spread), dtype)

    return [
        case("one token", (1, 2), 3),
        case("two tokens", (2, 3), 5),
        case("narrower than the tokens", (3, 4), 2),
        case("no token", (0, 3), 4),
        case("a batch", (2, 4, 3), 7),
        case("two batch axes", (2, 3, 5, 4), 9),
        case("one token without other axes", (5,), 6),
        case("float32", (2, 3, 6), 8, torch.float32),
        case("bfloat16", (5, 4), 6, torch.bfloat16),
        case("large numbers", (2, 3), 4, spread=2000.0),
        case("large numbers, float32", (2, 3), 4, torch.float32, 300.0),
        case("more tokens than 512", (520, 2), 2),
        case("more hidden units than 512", (1, 2), 520),
    ]


def _swiglu_drawn(draw: Draw) -> Case:
    """A case by chance: axes, sizes, dtype and layout."""
    shape = [draw.one_of(*SIZES) for _ in range(draw.one_of(1, 2, 3, 4))]
    arguments = _arguments(draw.numbers, shape, draw.one_of(3, 1, 7), GATED)
    arguments = transposed(arguments) if draw.one_of(False, True) else arguments
    return Case("drawn", arguments, draw.one_of(*DTYPES))


def _linear_in_value(run: Run, case: Case) -> Problem | None:
    """Twice the value, twice the answer."""
    doubled = run.value(case, w_up=2 * case.arguments["w_up"])
    far = 2 * run.expected(case)[1]
    return unchanged(run.value(case), doubled / 2, far, "w_up is doubled", "half of f")


def _shut(run: Run, case: Case) -> Problem | None:
    shut = run.value(case, w_gate=0 * case.arguments["w_gate"])
    return compare(np.zeros_like(shut), shut, 0.0, "with w_gate = 0: f")


SWIGLU = Spec(
    name="swiglu",
    may_refuse=True,
    statement=SWIGLU_STATEMENT,
    required=("x", "w_gate", "w_up", "w_down"),
    reference=reference.swiglu,
    baseline=SwigluFormula(),
    cases=_swiglu_cases,
    combine=_swiglu_drawn,
    num_drawn=6,
    checks=(
        ALONE,
        Check(
            "linear in the value",
            "The answer is linear in w_up: only the gate goes through SiLU.",
            _linear_in_value,
            when=_exact,
        ),
        Check(
            "a gate of 0 is shut",
            "silu(0) is 0, so where the gate is 0 nothing of the value may pass.",
            _shut,
            when=_exact,
        ),
        CURVE,
        CAN_LEARN,
        OTHER_SIZE,
        EITHER_MODE,
        LETS_GO,
        NAN_STAYS,
    ),
    mutants=mistakes_in(mutants, of="swiglu"),
    build=partial(build, activation="swiglu", bias=False),
    chapter=8,
)
