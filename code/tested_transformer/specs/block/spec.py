"""The Spec of a stack's norm_placement: where the norm stands, what is added to what, what is dropped."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ... import reference
from ...layers.norms import LayerNorm
from ...layers.resi_dual import ResiDual, ResiDualStack
from ...layers.residual import NORM_PLACEMENTS, Residual
from ...layers.stack import Stack
from ..compare import Problem, compare
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants
from .mutants import Wiring

STATEMENT = """N sublayers f_n(x) = tanh(x w[n]), wired around N norms, LayerNorm(x) gain[n].
x (L, D), w (N, D, D), gain (N + 1, D), norm_placement, *, alpha=1.0, dropout=0.0 -> (L, D).
post: x = norm(x + f(x)). pre: x = x + f(norm(x)), and the norm gain[N] at the end.
deep: x = norm(alpha x + f(x)). dual: post, and total = total + f(x) from total = x; at the end
x + norm(total) with gain[N]. Dropout of that probability acts on f(x) alone."""
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
    layers = [_Layer(wire(_norm(g)), matrix) for matrix, g in zip(w, gain[:-1], strict=True)]
    last = _norm(gain[-1]) if norm_placement in ("pre", "resi_dual") else None
    return stack(layers)(x, norm=last)[0]


class _Layer(nn.Module):
    """One sublayer, tanh(x matrix), as a layer of a `Stack`."""

    def __init__(self, residual: Residual, matrix: Tensor) -> None:
        super().__init__()
        self.residual, self.matrix = residual, matrix

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        """One layer; it has no use for a cache."""
        return self.residual(x, lambda y: torch.tanh(y @ self.matrix))


def _norm(gain: Tensor) -> LayerNorm:
    """A LayerNorm with this scale."""
    norm = LayerNorm(len(gain), bias=False)
    norm.weight = nn.Parameter(gain.detach())
    return norm


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
    cases += [case("four sublayers", w, 5, 6, 4) for w in NORM_PLACEMENTS]
    cases += [case("an alpha of its own", "deepnorm", 4, 5, 3, alpha=2.5)]
    cases += [case("an alpha like thunder", "deepnorm", 4, 5, 3, alpha=LOUD)]
    cases += [case("float32", w, 3, 7, 5, torch.float32) for w in NORM_PLACEMENTS]
    return cases


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
    problems = []
    for gain in case.arguments["gain"][-2:]:
        bare = run.value(case) / gain
        wanted = np.concatenate([0 * bare[:, 0], 1 + 0 * bare[:, 0]])
        found = np.concatenate([bare.mean(-1), bare.var(-1)])
        problems.append(compare(wanted, found, 0.02, "means, variances"))
    return problems[-1] if all(problems) else None


def _thunder(run: Run, case: Case) -> Problem | None:
    return compare(_of_norms(case), run.value(case), 1e-4)


def _one_way_out(case: Case) -> bool:
    long = case.arguments["x"].shape[0] > 2 and case.dtype == torch.float64
    return long and not _silent(case) and case.arguments["norm_placement"] != "resi_dual"


CHECKS = (
    Check(
        "the end is normalized",
        "What leaves a stack has passed a norm last: in post-norm the layer's, in pre-norm its own.",
        _normalized,
        when=_one_way_out,
    ),
    Check(
        "nothing found, nothing changed",
        "With f(x) = 0 pre-norm must carry x untouched to the final norm; the others only normalize.",
        _nothing,
        when=lambda case: _silent(case) and not _dropped(case),
    ),
    Check(
        "the direct way is never dropped",
        "Dropout acts on f(x). Where f(x) is 0, it must change nothing.",
        _nothing,
        when=lambda case: _silent(case) and _dropped(case),
    ),
    Check(
        "a large alpha silences the sublayers",
        "alpha multiplies the stream, norm(alpha x + f(x)): the larger, the less f(x) counts.",
        _thunder,
        when=lambda case: case.arguments.get("alpha") == LOUD,
    ),
)


BLOCK = Spec(
    name="block",
    statement=STATEMENT,
    required=("x", "w", "gain", "norm_placement"),
    reference=lambda x, w, gain, norm_placement, alpha=1.0, dropout=0.0: reference.residual_stack(
        x, w, gain, norm_placement, alpha
    ),
    baseline=Wiring(),
    cases=_cases,
    checks=CHECKS,
    mutants=mistakes_in(mutants),
    chapter=7,
)
