"""The Specs of B-splines: basis functions that sum to 1 on the grid and vanish beyond it, and a layer of curves."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ... import reference
from ..checks import any_dtype
from ..compare import Problem, compare
from ..draw import Draw, attempts
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants

GAP = 1e-3  # from a knot, where a basis function of degree 0 or 1 jumps or bends


def _knots(grid_size: int, degree: int, low=-1.0, high=1.0) -> np.ndarray:
    return low + (high - low) / grid_size * np.arange(-degree, grid_size + degree + 1)


def _x(rng: np.random.Generator, shape: tuple[int, ...], knots: np.ndarray) -> np.ndarray:
    """Inside and outside of the grid, and not near a knot."""
    for _ in attempts():
        x = rng.uniform(knots[0] - 0.5, knots[-1] + 0.5, size=shape)
        if not x.size or np.abs(x[..., None] - knots).min() > GAP:
            return x


def _basis_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, shape, knots, degree, dtype=torch.float64) -> Case:
        return Case(label, {"x": _x(rng, shape, knots), "knots": knots, "degree": degree}, dtype)

    uneven = np.array([-2.0, -1.25, -1.0, -0.5, 0.25, 0.5, 1.5, 2.0])
    return [
        case("two hats", (3,), _knots(1, 1), 1),
        case("hats", (4,), _knots(3, 1), 1),
        case("degree 2", (2, 3), _knots(4, 2), 2),
        case("degree 3", (6,), _knots(5, 3), 3),
        case("uneven knots", (2, 4), uneven, 2),
        case("another range", (5,), _knots(3, 3, 0.0, 4.0), 3),
        case("float32", (3, 2), _knots(4, 3), 3, torch.float32),
        case("no numbers", (0,), _knots(2, 2), 2),
    ]


def _basis_by_chance(draw: Draw) -> Case:
    degree, size = draw.one_of(1, 2, 3), draw.one_of(2, 1, 4)
    knots = _knots(size, degree, -1.0, draw.one_of(1.0, 3.0))
    arguments = {"x": _x(draw.numbers, draw.one_of((3,), (2, 2)), knots)}
    return Case("sizes by chance", arguments | {"knots": knots, "degree": degree}, any_dtype(draw))


def _sum_to_one(run: Run, case: Case) -> Problem | None:
    """At grid points and in between, from the first inner knot to just below the last."""
    knots, degree = case.arguments["knots"], case.arguments["degree"]
    inner = knots[degree : len(knots) - degree]
    x = np.concatenate((inner[:-1], (inner[:-1] + inner[1:]) / 2))
    got = run.value(case, x=x).sum(-1)
    return compare(
        np.ones_like(got),
        got,
        8 * case.rounding(4 * (degree + 1)),
        "the sum of the basis functions",
    )


def _nothing(run: Run, case: Case) -> Problem | None:
    knots = case.arguments["knots"]
    got = run.value(case, x=np.array([knots[0] - 1.0, knots[-1] + 1.0]))
    return compare(np.zeros_like(got), got, 0.0, "the basis functions beyond all knots")


BSPLINE_BASIS = Spec(
    name="bspline_basis",
    statement="bspline_basis(x, knots, degree): the B-splines of that degree on the knots at every x, by the recursion "
    "B_i,p(x) = (x - t_i) / (t_i+p - t_i) B_i,p-1(x) + (t_i+p+1 - x) / (t_i+p+1 - t_i+1) B_i+1,p-1(x), from B_i,0 = 1 "
    "where t_i <= x < t_i+1, else 0. x (*batch), knots (n), rising -> (*batch, n - 1 - degree)",
    required=("x", "knots", "degree"),
    reference=reference.bspline_basis,
    baseline=mutants.BasisFormula(),
    cases=_basis_cases,
    combine=_basis_by_chance,
    num_drawn=4,
    checks=(
        Check("the basis functions sum to 1", "On the grid, knots included, those of any degree do.", _sum_to_one),
        Check("beyond all knots there is nothing", "A basis function spans degree + 1 intervals, and is 0 elsewhere.", _nothing),
    ),
    mutants=mistakes_in(mutants, "bspline_basis"),
    chapter=21,
)  # fmt: skip

# --- The layer ------------------------------------------------------------------------------------


def _layer(rng: np.random.Generator, batch, sizes, grid_size, degree) -> dict[str, Any]:
    outputs, inputs = sizes
    knots = _knots(grid_size, degree)
    return {
        "x": _x(rng, (*batch, inputs), knots),
        "base": rng.normal(size=(outputs, inputs)),
        "coefficients": rng.normal(size=(outputs, inputs, grid_size + degree)),
        "knots": knots,
        "degree": degree,
    }


def _layer_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *arguments, dtype=torch.float64) -> Case:
        return Case(label, _layer(rng, *arguments), dtype)

    return [
        case("one curve", (1,), (1, 1), 2, 1),
        case("two inputs", (3,), (1, 2), 3, 2),
        case("three outputs", (2,), (3, 2), 5, 3),
        case("axes of a batch", (2, 3), (2, 4), 4, 3),
        case("float32", (3,), (4, 3), 5, 3, dtype=torch.float32),
        case("no tokens", (0,), (2, 3), 2, 2),
    ]


def _silu_left(run: Run, case: Case) -> Problem | None:
    x = np.full_like(case.arguments["x"], case.arguments["knots"][-1] + 1.0)
    far = x[..., :1].reshape(-1)[0]
    sums = case.arguments["base"].sum(1) * far / (1 + np.exp(-far))
    got = run.value(case, x=x)
    slack = case.rounding(x.shape[-1] + 4) * far * np.abs(case.arguments["base"]).sum(1).max()
    return compare(np.broadcast_to(sums, got.shape), got, slack, "the output beyond all knots")


KAN_LAYER = Spec(
    name="kan_layer",
    statement="kan_layer(x, base, coefficients, knots, degree): y_j = sum_i (base_ji silu(x_i) + sum_m coefficients_jim "
    "B_m(x_i)), B_m the B-splines of that degree on the knots. x (*batch, D), base (F, D), coefficients (F, D, m), "
    "knots (n) -> (*batch, F)",
    required=("x", "base", "coefficients", "knots", "degree"),
    reference=reference.kan_layer,
    baseline=mutants.LayerFormula(),
    cases=_layer_cases,
    checks=(
        Check(
            "outside the grid the SiLU is left",
            "Beyond all knots every spline is 0: the output is base silu(x).",
            _silu_left,
            when=lambda case: not case.is_empty,
        ),
    ),
    mutants=mistakes_in(mutants, "kan_layer"),
    chapter=21,
)
