"""The Spec of dynamic NTK: the base of rotary positions for the length of each text."""

from __future__ import annotations

import numpy as np

from ..compare import Problem, compare
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants
from .mutants import dynamic_base


def _reference(lengths, base, d, trained, factor) -> np.ndarray:
    """Text by text."""
    bases = []
    for length in lengths.tolist():
        stretch = factor * length / trained - (factor - 1) if length > trained else 1.0
        bases.append(base * stretch ** (d / (d - 2)))
    return np.array(bases)


def _cases(rng: np.random.Generator) -> list[Case]:
    def case(label, lengths, base=10000.0, d=64, trained=2048, factor=2.0) -> Case:
        arguments = {"lengths": np.asarray(lengths), "base": base, "d": d}
        return Case(label, arguments | {"trained": trained, "factor": factor})

    return [
        case("twice the length", [4096]),
        case("as in training", [2048, 1, 1024]),
        case("one more token", [2049, 2050], factor=4.0),
        case("short and long", [512, 3000, 16384], factor=4.0),
        case("a factor of 1", [30, 90], trained=40, factor=1.0),
        case("a small head", [30, 45], d=4, base=500.0, trained=20, factor=3.0),
        case("by chance", rng.integers(1, 9000, 5), d=2 * int(rng.integers(2, 65)), factor=8.0),
    ]


def _grows(run: Run, case: Case) -> Problem | None:
    trained = case.arguments["trained"]
    found = run.value(case, lengths=np.array([2 * trained, 3 * trained]))
    if found[1] > found[0]:
        return None
    return Problem("a larger base for three times the trained length than for twice", f"{found}")


def _short(run: Run, case: Case) -> Problem | None:
    trained, base = case.arguments["trained"], case.arguments["base"]
    lengths = np.array([1, trained // 4, trained - 1, trained])
    found = run.value(case, lengths=lengths)
    return compare(np.full(4, base), found, 1e-9 * base, "the base of texts no longer than trained")


def _own(run: Run, case: Case) -> Problem | None:
    lengths = np.array([3, 4]) * case.arguments["trained"]
    both, one = run.value(case, lengths=lengths), run.value(case, lengths=lengths[:1])
    return compare(one, both[:1], 1e-9 * abs(one[0]), "the base of a text beside a longer one")


def _slowest(run: Run, case: Case) -> Problem | None:
    """base'^(-(d - 2)/d) is base^(-(d - 2)/d) over the stretch."""
    a = case.arguments
    lengths, power = np.array([3 * a["trained"]]), -(a["d"] - 2) / a["d"]
    slowed = a["base"] ** power / run.value(case, lengths=lengths) ** power
    stretch = np.array([3 * a["factor"] - (a["factor"] - 1)])
    return compare(stretch, slowed, 1e-9 * stretch[0], "the slowest pair is slowed by")


DYNAMIC_BASE = Spec(
    name="dynamic_base",
    statement="dynamic_base(lengths, base, d, trained, factor): for each text length in lengths (B,), the base of rotary "
    "positions under dynamic NTK: base x (factor x length / trained - (factor - 1))^(d / (d - 2)) where a text is longer than "
    "`trained`, and `base` where it is not. (B,), float64",
    required=("lengths", "base", "d", "trained", "factor"),
    reference=_reference,
    baseline=dynamic_base,
    differentiable=False,
    cases=_cases,
    checks=(
        Check(
            "each text has its own base",
            "Another text of the batch must not change the base.",
            _own,
        ),
        Check(
            "a longer text has a larger base",
            "The base is computed from the length of the text, not from a length of the configuration.",
            _grows,
        ),
        Check(
            "a short text keeps its base",
            "Up to the trained length nothing is scaled.",
            _short,
        ),
        Check(
            "the slowest pair is slowed by the stretch",
            "The exponent d / (d - 2) makes the slowest pair slower by exactly the stretch.",
            _slowest,
        ),
    ),
    mutants=mistakes_in(mutants),
    chapter=18,
)
