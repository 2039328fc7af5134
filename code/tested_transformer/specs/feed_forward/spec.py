"""The Specs of the feed-forward network: functions of x and the weights, or modules of named layers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from ... import reference
from ...errors import BackendError, argument_error
from ..compare import Problem, compare
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants
from .mutants import FeedForwardFormula, SwigluFormula

STATEMENT = """activation(x w_up + b_up) w_down + b_down, each token alone.
x (*batch, D), w_up (D, d_ff), w_down (d_ff, D) -> (*batch, D).
A function of (x, w_up, b_up, w_down, b_down[, activation]), or a module class(d_model,
d_ff[, activation, dropout]) whose layers `up_proj` and `down_proj` are nn.Linear or nn.Conv1d with
kernel 1; forward takes x. activation: "relu" unless given; "gelu" (exact), "gelu_tanh", "silu"."""

SWIGLU_STATEMENT = """(silu(x w_gate) * (x w_up)) w_down, each token alone.
x (*batch, D), w_gate and w_up (D, d_ff), w_down (d_ff, D) -> (*batch, D).
A function of (x, w_gate, w_up, w_down), or a module class(d_model, d_ff[, activation, bias])
whose layers `gate_proj`, `up_proj` and `down_proj` are nn.Linear or nn.Conv1d with kernel 1, without bias."""

MATRICES = ("w_gate", "w_up", "w_down")


def build(candidate: Any, arguments: dict[str, Any], **always: Any) -> Callable[..., Any]:
    """A function of x and the weights; a module gets them in place of its own, and evaluates."""
    if not (isinstance(candidate, type) and issubclass(candidate, nn.Module)):
        if "dropout" in arguments:
            raise BackendError("a function has no training mode")
        return candidate
    takes = inspect.signature(candidate).parameters
    options = {n: arguments[n] for n in ("activation", "dropout") if n in arguments} | always
    given = {name: option for name, option in options.items() if name in takes}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = candidate(*arguments["w_up"].shape, **given).to(arguments["x"].dtype)
    with torch.no_grad():
        module(arguments["x"].detach())  # layers whose own sizes do not fit raise here
    names = [name for name in arguments if name.startswith(("w_", "b_"))]
    return partial(_with_weights, module.eval(), names)


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
    return functional_call(module, weights, (x,))


def _arrays(rng: np.random.Generator, d_model: int, d_ff: int, names: str) -> dict[str, Any]:
    """Weights of those names, of a size that keeps numbers near 1."""
    shapes = {
        "w_gate": (d_model, d_ff), "w_up": (d_model, d_ff), "b_up": (d_ff,),
        "w_down": (d_ff, d_model), "b_down": (d_model,),
    }  # fmt: skip
    return {name: rng.normal(size=shapes[name]) * shapes[name][0] ** -0.5 for name in names.split()}


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, shape, d_ff, dtype=torch.float64, **options) -> Case:
        names = "w_up b_up w_down b_down"
        arguments = {"x": rng.normal(size=shape)} | _arrays(rng, shape[-1], d_ff, names)
        arguments["b_up"] = rng.normal(size=d_ff)  # bends far from 0
        return Case(label, arguments | options, dtype)

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
    ]


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
    return compare(before, after, 2 * run.expected(case)[1], "the tokens before the changed one")


def _order(run: Run, case: Case) -> Problem | None:
    turned = run.value(case, x=np.flip(case.arguments["x"], -2).copy())
    return compare(np.flip(run.value(case), -2), turned, 2 * run.expected(case)[1])


def _asleep(run: Run, case: Case) -> Problem | None:
    awake = run.value(case)
    return compare(run.value(case, dropout=0.0), awake, 2 * run.expected(case)[1])


def _bent(run: Run, case: Case) -> Problem | None:
    """f(x) + f(-x) - 2 f(0) is 0 for every network without a bend; far out, every unit bends."""
    x = 100 * case.arguments["x"]
    values = [run.value(case, x=factor * x) for factor in (1.0, -1.0, 0.0)]
    gap = float(np.abs(values[0] + values[1] - 2 * values[2]).max())
    return Problem("f(x) + f(-x) other than 2 f(0)", "equal: a line") if gap < 1e-9 else None


def _last_word(run: Run, case: Case) -> Problem | None:
    """What is added to the last bias is added to the answer."""
    bias = case.arguments["b_down"]
    moved = run.value(case, b_down=bias - 10)
    return compare(run.value(case) - 10, moved, 1e-9, "with b_down - 10: f")


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
CHECKS = (
    Check(
        "dropout sleeps in evaluation",
        "A module in evaluation drops nothing: give functional.dropout training=self.training.",
        _asleep,
        needs=("dropout",),
    ),
    ALONE,
    ORDER,
    Check(
        "the last word is linear",
        "Nothing may follow the second map: what b_down adds is added to the answer.",
        _last_word,
        when=_exact,
    ),
    Check(
        "bent between the maps",
        "Without an activation in between, two linear maps are one linear map.",
        _bent,
        when=_exact,
    ),
)


def _slow(x, w_up, b_up, w_down, b_down, activation="relu", dropout=0.0):
    """The reference; in evaluation dropout is nothing."""
    return reference.feed_forward(x, w_up, b_up, w_down, b_down, activation)


FEED_FORWARD = Spec(
    name="feed_forward",
    statement=STATEMENT,
    required=("x", "w_up", "b_up", "w_down", "b_down"),
    reference=_slow,
    baseline=lambda *a, dropout=None, **k: FeedForwardFormula()(*a, **k),
    cases=_cases,
    checks=CHECKS,
    mutants=mistakes_in(mutants, of="feed_forward"),
    build=build,
    chapter=8,
)

# --- SwiGLU ---------------------------------------------------------------------------------------


def _swiglu_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, shape, d_ff, dtype=torch.float64) -> Case:
        arrays = _arrays(rng, shape[-1], d_ff, "w_gate w_up w_down")
        return Case(label, {"x": rng.normal(size=shape)} | arrays, dtype)

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
    ]


def _unbent(run: Run, case: Case) -> Problem | None:
    """Twice the value, twice the answer."""
    doubled = run.value(case, w_up=2 * case.arguments["w_up"])
    return compare(2 * run.value(case), doubled, 1e-9, "with 2 w_up: f")


def _shut(run: Run, case: Case) -> Problem | None:
    shut = run.value(case, w_gate=0 * case.arguments["w_gate"])
    return compare(np.zeros_like(shut), shut, 1e-9, "with w_gate = 0: f")


SWIGLU = Spec(
    name="swiglu",
    statement=SWIGLU_STATEMENT,
    required=("x", "w_gate", "w_up", "w_down"),
    reference=reference.swiglu,
    baseline=SwigluFormula(),
    cases=_swiglu_cases,
    checks=(
        ALONE,
        Check(
            "the value passes unbent",
            "The answer is linear in w_up: only the gate goes through SiLU.",
            _unbent,
            when=_exact,
        ),
        Check(
            "a gate of 0 is shut",
            "silu(0) is 0, so where the gate is 0 nothing of the value may pass.",
            _shut,
            when=_exact,
        ),
    ),
    mutants=mistakes_in(mutants, of="swiglu"),
    build=partial(build, activation="swiglu", bias=False),
    chapter=8,
)
