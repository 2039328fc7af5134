"""The Specs of BitNet b1.58: a linear layer of three values, and four of them in a byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ... import reference
from ..checks import any_dtype, transposed
from ..compare import Problem, compare, unchanged
from ..draw import Draw, attempts
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants

GAP = 1e-3  # from a tie of rounding, far above rounding's own error: at a tie either is right


def _arguments(
    rng: np.random.Generator, batch: tuple[int, ...], sizes: tuple[int, int]
) -> dict[str, Any]:
    """Inputs and weights none of which is nearly halfway between two whole numbers."""
    outputs, inputs = sizes
    for _ in attempts():
        weight = rng.normal(size=(outputs, inputs))
        x = rng.normal(size=(*batch, inputs))
        if not x.size:
            return {"x": x, "weight": weight}
        whole = x * 127 / np.abs(x).max(-1, keepdims=True)
        ties = [
            np.abs(np.abs(a - np.floor(a)) - 0.5).min()
            for a in (whole, weight / np.abs(weight).mean())
        ]
        if min(ties) > GAP:
            return {"x": x, "weight": weight}


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, batch, sizes, dtype=torch.float64, bias=False) -> Case:
        arguments = _arguments(rng, batch, sizes)
        if bias:
            arguments["bias"] = rng.normal(size=sizes[0])
        return Case(label, arguments, dtype)

    zero = _arguments(rng, (2, 3), (2, 6)) | {"bias": rng.normal(size=2)}
    zero["x"][1, 2] = 0.0
    return [
        case("one token", (1,), (2, 3)),
        case("three tokens", (3,), (4, 5)),
        case("a bias", (2,), (3, 4), bias=True),
        Case("axes of a batch, a token of zeros", zero),
        case("no axes of a batch", (), (3, 5)),
        case("float32", (4,), (3, 7), torch.float32, bias=True),
        Case("transposed tensors", transposed(_arguments(rng, (3,), (4, 2)))),
        case("no tokens", (0,), (3, 4)),
    ]


def _by_chance(draw: Draw) -> Case:
    batch = draw.one_of((2,), (), (1, 3))
    sizes = draw.one_of(3, 1, 5), draw.one_of(4, 2, 9)
    arguments = _arguments(draw.numbers, batch, sizes)
    if draw.one_of(False, True):
        arguments["bias"] = draw.numbers.normal(size=sizes[0])
    return Case("sizes by chance", arguments, any_dtype(draw))


def _without_bias(case: Case) -> dict[str, Any]:
    return {"bias": 0 * case.arguments["bias"]} if "bias" in case.arguments else {}


def _twice(run: Run, case: Case) -> Problem | None:
    plain = _without_bias(case)
    once = run.value(case, **plain)
    twice = run.value(case, weight=2 * case.arguments["weight"], **plain)
    return unchanged(
        2 * once, twice, 4 * run.expected(case)[1], "the weights are doubled", "twice the output"
    )


def _outlier(run: Run, case: Case) -> Problem | None:
    """One weight of 100 among zeros, whose mean is 100 / count: it counts as one such mean."""
    weight = np.zeros_like(case.arguments["weight"])
    weight[0, 0] = 100.0
    x = np.ones_like(case.arguments["x"])
    wanted = np.zeros((*x.shape[:-1], len(weight)))
    wanted[..., 0] = 100.0 / weight.size
    got = run.value(case, x=x, weight=weight, **_without_bias(case))
    return compare(
        wanted, got, 100 * case.rounding(weight.size), "the output of a single large weight"
    )


def _alone(run: Run, case: Case) -> Problem | None:
    x = case.arguments["x"]
    far = x.copy()
    far[-1] = 50 * far[-1] + 1.0
    before, after = run.value(case)[:-1], run.value(case, x=far)[:-1]
    return unchanged(
        before,
        after,
        2 * run.expected(case)[1],
        "the last token is larger",
        "another token's output",
    )


BIT_LINEAR = Spec(
    name="bit_linear",
    statement="bit_linear(x, weight, *, bias): x Q W^T + bias of quantized inputs and weights. A weight is m times "
    "-1, 0 or 1, whichever is nearest to w / m, where m is the mean of |w| over the matrix; an input is s / 127 times "
    "the nearest whole number, where s is the largest |x| of its token. Gradients are those of a linear layer with "
    "the quantized numbers, passed on as if quantizing were the identity. x (*batch, D), weight (F, D), bias (F) -> "
    "(*batch, F)",
    required=("x", "weight"),
    reference=reference.bit_linear,
    baseline=mutants.BitLinearFormula(),
    cases=_cases,
    combine=_by_chance,
    num_drawn=4,
    checks=(
        Check(
            "twice the weights, twice the output",
            "The scale is divided out again: the same ternary weights stand for twice as much.",
            _twice,
            when=lambda case: case.dtype == torch.float64 and not case.is_empty,
        ),
        Check(
            "an outlier among the weights is cut to one",
            "Only -1, 0 and 1 exist: a weight of a hundred times the mean counts as one mean.",
            _outlier,
            when=lambda case: case.arguments["weight"].size > 2 and not case.is_empty,
        ),
        Check(
            "each token alone",
            "A token's largest number is the scale of that token, and of no other.",
            _alone,
            when=lambda case: case.arguments["x"].ndim > 1 and len(case.arguments["x"]) > 1,
        ),
    ),
    mutants=mistakes_in(mutants, "bit_linear"),
    chapter=21,
)

# --- Packed weights -------------------------------------------------------------------------------


def _pack_cases(rng: np.random.Generator) -> list[Case]:
    shapes = (4, 1), (8, 3), (12, 2), (20, 5)
    return [
        Case(f"{rows} rows", {"values": rng.integers(-1, 2, size=(rows, columns)).astype(np.int8)})
        for rows, columns in shapes
    ]


def _zeros(run: Run, case: Case) -> Problem | None:
    got = run.value(case, values=0 * case.arguments["values"])
    return None if (got == 85).all() else Problem("bytes of 85, 01 01 01 01", f"{got.ravel()[:4]}")


PACK_TERNARY = Spec(
    name="pack_ternary",
    statement="pack_ternary(values): row i, column j is the byte whose two lowest bits are values[i, j] + 1, the next "
    "two values[i + F / 4, j] + 1, and so on. values (F, D), int8, each -1, 0 or 1 -> (F / 4, D), uint8",
    required=("values",),
    reference=reference.pack_ternary,
    cases=_pack_cases,
    differentiable=False,
    checks=(Check("zeros are bytes of 85", "0 is stored as 1: 01 four times is 85.", _zeros),),
    mutants=mistakes_in(mutants, "pack_ternary"),
    chapter=21,
)
