"""The Spec of xPos: rotary positions with a decay of each pair of features."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ... import reference
from ..checks import transposed, varied
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants
from .mutants import XPosFormula

FAR = 17  # positions by which queries and keys are moved together


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, shape, position_ids, dtype=torch.float64, **options) -> Case:
        arguments = {"x": rng.standard_normal(shape), "position_ids": np.asarray(position_ids)}
        return Case(label, arguments | options, dtype)

    left = np.maximum(np.arange(5) - np.array([[0], [2]]), 0)
    return [
        case("one pair", (1, 1, 3, 2), [0, 1, 2]),
        case("two pairs", (1, 2, 3, 4), [0, 1, 2], scale_base=8.0),
        case("keys", (1, 2, 3, 4), [0, 1, 2], scale_base=8.0, of_keys=True),
        case("halves", (1, 2, 3, 6), [0, 1, 2], scale_base=8.0, layout="halves"),
        case("around a center", (2, 3, 4, 6), [5, 6, 7, 8], scale_base=4.0, center=6),
        case("keys around a center", (1, 2, 4, 8), [0, 3, 9, 20], center=9, of_keys=True),
        case("a sequence's own positions", (2, 3, 5, 8), left, layout="halves", scale_base=16.0),
        case("another base", (1, 2, 4, 8), [0, 1, 5, 9], base=500.0, scale_base=32.0, center=4, layout="halves"),
        case("float32, far away", (1, 2, 3, 8), rng.integers(2000, 4000, 3), torch.float32, center=3000),
        case("no tokens", (2, 2, 0, 4), np.zeros(0, dtype=np.int64)),
        replace(own := case("all options at once, transposed tensors", (2, 3, 4, 6), [0, 1, 2, 9],
                            layout="halves", center=1, of_keys=True),
                arguments=transposed(own.arguments)),
    ]  # fmt: skip


def _by_chance(draw: Draw) -> Case:
    batch, length = draw.one_of(1, 3), draw.one_of(3, 1)
    options = draw.one_of({}, {"layout": "halves"}) | draw.one_of({}, {"of_keys": True})
    options = options | draw.one_of({}, {"center": 40}) | draw.one_of({}, {"scale_base": 64.0})
    size = (batch, draw.one_of(1, 2), length, draw.one_of(4, 2, 8))
    arguments = {
        "x": draw.numbers.normal(size=size),
        "position_ids": draw.numbers.integers(0, 90, draw.one_of((length,), (batch, length))),
    }
    return Case("options by chance", arguments | options, draw.one_of(torch.float64, torch.float32))


def _is_exact(case: Case) -> bool:
    return case.dtype == torch.float64 and not case.is_empty


def _pair_norms(x: np.ndarray, case: Case) -> np.ndarray:
    """The norm of each pair of features."""
    if case.arguments.get("layout") == "halves":
        return np.hypot(*np.split(x, 2, axis=-1))
    return np.hypot(x[..., 0::2], x[..., 1::2])


def _at_center(run: Run, case: Case) -> Problem | None:
    x, ids = case.arguments["x"], case.arguments["position_ids"]
    there = varied(
        case, "the center", position_ids=np.full_like(ids, case.arguments.get("center", 0))
    )
    slack = 2 * run.expected(there)[1]
    return compare(
        _pair_norms(x, case), _pair_norms(run.value(there), case), slack, "norms of pairs"
    )


def _distances(run: Run, case: Case) -> Problem | None:
    """The same queries and keys FAR positions later have the same scores."""
    ids = case.arguments["position_ids"]
    scores, slack = [], 0.0
    for steps in (0, FAR):
        sides = [
            varied(case, f"{name}, {steps} later", position_ids=ids + steps, of_keys=name == "keys")
            for name in ("queries", "keys")
        ]
        query, key = (run.value(side) for side in sides)
        with np.errstate(invalid="ignore"):  # inf - inf
            scores.append(query @ key.swapaxes(-1, -2))
        rounding = [run.expected(side)[1] for side in sides]
        sizes = [np.abs(each).max(initial=0.0) for each in (query, key)]
        slack += query.shape[-1] * (rounding[0] * sizes[1] + rounding[1] * sizes[0])
    return unchanged(*scores, 2 * slack, f"all are {FAR} positions later", "the scores")


def _rates(run: Run, case: Case) -> Problem | None:
    """What is left of a query's pairs after scale_base positions."""
    x, ids = np.ones_like(case.arguments["x"]), case.arguments["position_ids"]
    far = int(case.arguments.get("scale_base", 512.0)) + case.arguments.get("center", 0)
    later = varied(case, "a scale later", x=x, position_ids=np.full_like(ids, far), of_keys=False)
    pairs = np.arange(x.shape[-1] // 2) * 2 / x.shape[-1]
    wanted = np.broadcast_to((pairs + 0.4) / 1.4, (*x.shape[:-1], len(pairs)))
    got, slack = _pair_norms(run.value(later), case) / np.sqrt(2), 2 * run.expected(later)[1]
    return compare(wanted, got, slack, "the share of each pair that is left")


XPOS = Spec(
    name="apply_xpos",
    statement="""apply_xpos(x, position_ids, *, of_keys=False, base=10000.0, scale_base=512.0, center=0,
layout="interleaved"): as apply_rotary, and then pair i of d / 2 times z_i^e for queries, z_i^-e for keys, where z_i =
(2i/d + 0.4) / 1.4 and e = (position - center) / scale_base. x (B, H, L, d), position_ids (L) or (B, L) -> (B, H, L, d).""",
    required=("x", "position_ids"),
    reference=reference.apply_xpos,
    baseline=XPosFormula(),
    cases=_cases,
    combine=_by_chance,
    num_drawn=4,
    checks=(
        Check(
            "at the center nothing is scaled",
            "At the position `center` the exponent is 0, and each pair keeps its norm.",
            _at_center,
            when=_is_exact,
        ),
        Check(
            "scores depend on the distance alone",
            "z^p of the query times z^-q of the key is z^(p - q), wherever the two are.",
            _distances,
            when=_is_exact,
        ),
        Check(
            "each pair decays at its own rate",
            "scale_base positions on, pair i of a query is (2i/d + 0.4) / 1.4 of what it was.",
            _rates,
            when=_is_exact,
        ),
    ),
    mutants=mistakes_in(mutants),
    chapter=18,
)
