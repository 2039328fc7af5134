"""The Spec of a stack's norm_placement: where the norm stands, what is added to what, what is dropped."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from ... import reference
from ...layers.norms import LayerNorm
from ...layers.resi_dual import ResiDual, ResiDualStack
from ...layers.residual import NORM_PLACEMENTS, Residual
from ...layers.stack import Stack
from ..checks import HAIR, changed, largest, scaled_by_dropout, tolerance, transposed
from ..compare import Problem, compare, shares
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import AGAIN, EQUAL, GRADIENTS, Case, Check, Run, Spec
from ..surroundings import kept
from . import mutants
from .mutants import Wiring

STATEMENT = """N sublayers f_n(x) = tanh(x w[n]), wired around N norms, LayerNorm(x) gain[n].
x (L, D), w (N, D, D), gain (N + 1, D), norm_placement, *, alpha=1.0, dropout=0.0 -> (L, D).
post: x = norm(x + f(x)). pre: x = x + f(norm(x)), and the norm gain[N] at the end.
deep: x = norm(alpha x + f(x)). dual: post, and total = total + f(x) from total = x; at the end
x + norm(total) with gain[N]. Dropout acts on f(x) alone: each of its numbers is 0 with that
probability, or divided by what is left of 1."""
EPS_TAKES = (
    0.02  # of a variance, from a stream of 5e-4: this names a missing norm, equality is asked apart
)
ALL = 1 - 2.0**-40  # dropout of everything; a Residual takes no 1
LOUD = 1e7  # an alpha beside which no sublayer is heard


def with_residual(
    x: Tensor,
    w: Tensor,
    gain: Tensor,
    norm_placement: str,
    *,
    alpha: float = 1.0,
    dropout: float = 0.0,
) -> Tensor:
    """The stack that the statement asks for, made of `Residual` or `ResiDual`."""
    stack, wire = ResiDualStack, partial(ResiDual, dropout=dropout)
    if norm_placement != "resi_dual":
        stack = Stack
        wire = partial(Residual, norm_placement=norm_placement, dropout=dropout, alpha=alpha)
    layers = [_Layer(wire(_Norm(g)), matrix) for matrix, g in zip(w, gain[:-1], strict=True)]
    last = _Norm(gain[-1]) if norm_placement in ("pre", "resi_dual") else None
    return stack(layers)(x, norm=last)[0]


class _Layer(nn.Module):
    """One sublayer, tanh(x matrix), as a layer of a `Stack`."""

    def __init__(self, residual: Residual, matrix: Tensor) -> None:
        super().__init__()
        self.residual, self.matrix = residual, matrix

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        """One layer; it has no use for a cache."""
        return self.residual(x, lambda y: torch.tanh(y @ self.matrix))


class _Norm(nn.Module):
    """A LayerNorm with this scale."""

    def __init__(self, gain: Tensor) -> None:
        super().__init__()
        self.gain, self.norm = gain, LayerNorm(len(gain), bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The gradient reaches the scale that was given."""
        return functional_call(self.norm, {"weight": self.gain}, x)


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(
        label, norm_placement, length, width, depth, dtype=torch.float64, **given: Any
    ) -> Case:
        """`loud` scales the sublayers' matrices; 0 makes sublayers that find nothing."""
        loud = given.pop("loud", 1.0)
        arguments = {
            "x": 2 * rng.normal(size=(length, width)),
            "w": loud * rng.normal(size=(depth, width, width)) * width**-0.5,
            "gain": 1 + 0.3 * rng.normal(size=(depth + 1, width)),
            "norm_placement": norm_placement,
        }
        return Case(f"{norm_placement}, {label}", arguments | given, dtype)

    cases = [case("one sublayer", w, 2, 3, 1) for w in NORM_PLACEMENTS]
    cases += [case("no token", w, 0, 3, 2) for w in NORM_PLACEMENTS]
    cases += [
        case("three sublayers that find nothing", w, 3, 4, 3, loud=0) for w in NORM_PLACEMENTS
    ]
    cases += [
        case("dropout where nothing is found", w, 4, 5, 3, loud=0, dropout=0.5)
        for w in NORM_PLACEMENTS
    ]
    cases += [case("one sublayer, dropped", w, 4, 3, 1, dropout=ALL) for w in NORM_PLACEMENTS]
    cases += [case("three sublayers, dropped", w, 4, 3, 3, dropout=ALL) for w in NORM_PLACEMENTS]
    cases += [case("four sublayers", w, 5, 6, 4) for w in NORM_PLACEMENTS]
    cases += [case("an alpha of its own", "deepnorm", 4, 5, 3, alpha=2.5)]
    cases += [case("an alpha like thunder", "deepnorm", 4, 5, 3, alpha=LOUD)]
    cases += [case("float32", w, 3, 7, 5, torch.float32) for w in NORM_PLACEMENTS]
    return cases


def _drawn(draw: Draw) -> Case:
    """A case by chance: placement, sizes, alpha, dtype and layout."""
    norm_placement = draw.one_of(*NORM_PLACEMENTS)
    length, width, depth = draw.one_of(1, 2, 7), draw.one_of(2, 3, 5, 8), draw.one_of(1, 2, 3)
    arguments = {
        "x": draw.one_of(1.0, 5.0) * draw.numbers.normal(size=(length, width)),
        "w": draw.one_of(1.0, 4.0) * draw.numbers.normal(size=(depth, width, width)),
        "gain": draw.numbers.normal(size=(depth + 1, width)),
        "norm_placement": norm_placement,
    }
    arguments = transposed(arguments) if draw.one_of(False, True) else arguments
    if norm_placement == "deepnorm" and (alpha := draw.one_of(None, 0.5, 3.0)):
        arguments["alpha"] = alpha
    if draw.one_of(False, True):
        arguments["dropout"] = 0.0
    return Case(f"drawn, {norm_placement}", arguments, draw.one_of(torch.float64, torch.float32))


def _silent(case: Case) -> bool:
    return case.arguments["x"].size > 0 and not bool(case.arguments["w"].any())


def _dropped(case: Case) -> bool:
    return case.arguments.get("dropout") is not None


def _of_norms(case: Case) -> np.ndarray:
    """What is left of each norm_placement when every f(x) is 0."""
    arrays = case.arrays()
    x, gain, norm_placement = arrays["x"], arrays["gain"], arrays["norm_placement"]
    end = reference.layer_norm(x, gain[-1], 0 * gain[-1])
    for g in gain[:-1]:
        x = reference.layer_norm(x, g, 0 * g)
    left = {"pre": end, "resi_dual": x + end}.get(norm_placement, x)
    return left.astype(np.float64)


def _nothing(run: Run, case: Case) -> Problem | None:
    return compare(_of_norms(case), run.value(case), 2 * run.expected(case)[1])


def _normalized(run: Run, case: Case) -> Problem | None:
    """Divided by the scale of one of the last two norms, every token has mean 0 and variance 1."""
    with shares():  # of its own: beside the other norm's scale a right answer is far off
        problems = [ends_normalized(run, case, gain) for gain in case.arguments["gain"][-2:]]
    return problems[-1] if all(problems) else None


def ends_normalized(run: Run, case: Case, gain: np.ndarray) -> Problem | None:
    """Has the answer, divided by this scale, mean 0 and variance 1, but for what eps may take?"""
    expected, far = run.expected(case)
    least = np.abs(gain).min()
    taken = 1 - (expected / case.arguments["gain"][_last_norm(case)]).var(-1).min()
    bare = run.value(case) / gain
    wanted = np.concatenate([0 * bare[:, 0], 1 + 0 * bare[:, 0]])
    found = np.concatenate([bare.mean(-1), bare.var(-1)])
    far = max(EPS_TAKES, 2 * float(taken)) + 4 * far / least * (1 + largest(bare))
    return compare(wanted, found, far, "means, variances")


def _last_norm(case: Case) -> int:
    """The norm that the answer has passed last."""
    return -1 if case.arguments.get("norm_placement", "pre") == "pre" else -2


def _wrong_without(run: Run, case: Case) -> bool:
    """Is it wrong without dropout too, so that what comes with it would not tell why?"""
    far = np.abs(run.value(case, dropout=0.0) - run.spec.expected(case, dropout=0.0))
    return bool(far.max() > run.expected(case)[1])


def _survivors(run: Run, case: Case) -> Problem | None:
    """With dropout 0.5 each number of f(x) is 0 or twice itself: one of 2^D answers for each token."""
    x, gain, w = (case.arguments[name] for name in ("x", "gain", "w"))
    placement = case.arguments["norm_placement"]

    def norm(total: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return reference.layer_norm(total, gain, 0 * gain)

    if _wrong_without(run, case):
        return None
    change = np.tanh((norm(x, gain[0]) if placement == "pre" else x) @ w[0])
    got, nearest = run.value(case, dropout=0.5), np.full(len(x), np.inf)
    for factors in itertools.product((0, 2), repeat=x.shape[-1]):
        total = x + change * factors
        end = norm(total, gain[1 if placement == "pre" else 0])
        end = end + norm(total, gain[1]) if placement == "resi_dual" else end
        nearest = np.minimum(nearest, np.abs(got - end).max(-1))
    if (nearest <= 4 * tolerance(run, case, got, dropout=0.0)).all():  # NaN is nowhere near
        return None
    return Problem("each number of f(x) dropped, or doubled at dropout 0.5", "others")


def _by_a_hair(run: Run, case: Case) -> Problem | None:
    hair = changed(case, dropout=HAIR)
    if _wrong_without(run, case):
        return None
    return scaled_by_dropout(run, case, hair, run.spec, run.spec.baseline)


def _by_chance(run: Run, case: Case) -> Problem | None:
    """Of 24 equal tokens dropout makes at least three kinds, and others at the next call.

    With three features a right one fails by chance once in 10^14.
    """
    x = np.tile(case.arguments["x"][:1], (24, 1))
    given = changed(case, x=x, dropout=0.5).tensors()
    with kept():
        called = run.built(given)
        first, second = (run._called(called, given).detach().numpy() for _ in range(2))
    kinds = len(np.unique(first.round(8), axis=0))
    if kinds < 3:
        return Problem("equal tokens that lose different features", f"{kinds} kinds of 24 tokens")
    if np.array_equal(first, second):
        return Problem("other features dropped at the next call", "the same ones")
    return None


def _all_dropped(case: Case) -> bool:
    return not _silent(case) and case.arguments.get("dropout") == ALL


def _has_one_answer(case: Case) -> bool:
    """Nothing is left to chance: a right answer may draw what it drops in any way."""
    return GRADIENTS.when(case) and case.arguments.get("dropout") in (None, 0.0, ALL)


def _thunder(run: Run, case: Case) -> Problem | None:
    """What the reference's own sublayers do beside such an alpha is allowed, four times."""
    (expected, far), wanted = run.expected(case), _of_norms(case)
    return compare(wanted, run.value(case), far + 4 * largest(expected - wanted))


def _one_way_out(case: Case) -> bool:
    listed = case.arguments["x"].shape[0] > 2 and not case.label.startswith("drawn")
    plain = listed and case.dtype == torch.float64 and not _dropped(case)
    return plain and not _silent(case) and case.arguments["norm_placement"] != "resi_dual"


CHECKS = (
    Check(
        "the end is normalized",
        "What leaves a stack has passed a norm last: in post-norm the layer's, in pre-norm its own.",
        _normalized,
        when=_one_way_out,
    ),
    Check(
        "where f(x) = 0, nothing is added",
        "With f(x) = 0 pre-norm must carry x untouched to the final norm; the others only normalize.",
        _nothing,
        when=lambda case: _silent(case) and not _dropped(case),
    ),
    Check(
        "the skip path is never dropped",
        "Dropout acts on f(x). Where f(x) is 0, it must change nothing.",
        _nothing,
        when=lambda case: _silent(case) and _dropped(case),
    ),
    Check(
        "what is kept is scaled",
        "Dropout acts on the numbers of f(x), and divides those that it keeps by 1 - dropout.",
        _survivors,
        when=lambda case: _all_dropped(case) and len(case.arguments["w"]) == 1,
    ),
    Check(
        "every sublayer is dropped alike",
        "Dropout divides what it keeps of f(x) by 1 - dropout, in each sublayer, and scales nothing else.",
        _by_a_hair,
        when=_all_dropped,
    ),
    Check(
        "each number is dropped by chance",
        "Dropout draws anew for each number of f(x): each feature, each token, each call.",
        _by_chance,
        when=_all_dropped,
    ),
    Check(
        "a large alpha silences the sublayers",
        "alpha multiplies the stream, norm(alpha x + f(x)): the larger, the less f(x) counts.",
        _thunder,
        when=lambda case: case.arguments.get("alpha") == LOUD,
    ),
)


def _slow(x, w, gain, norm_placement, alpha=1.0, dropout=0.0):
    """The reference; what is dropped entirely was never found."""
    w = 0 * w if dropout == ALL else w
    return reference.residual_stack(x, w, gain, norm_placement, alpha)


BLOCK = Spec(
    name="block",
    statement=STATEMENT,
    required=("x", "w", "gain", "norm_placement"),
    reference=_slow,
    baseline=Wiring(),
    cases=_cases,
    combine=_drawn,
    num_drawn=5,
    last=(EQUAL, replace(GRADIENTS, when=_has_one_answer), AGAIN),
    checks=CHECKS,
    mutants=mistakes_in(mutants),
    chapter=7,
)
