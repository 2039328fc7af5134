"""Exercises of chapter 18: the other layout of rotary positions, NTK's frequencies."""

from __future__ import annotations

import numpy as np
import torch

from ..specs.compare import Problem, compare
from ..specs.mistakes import mistake, mistakes
from ..specs.rotary.spec import ROTARY
from ..specs.spec import UNTOUCHED, Case, Check, Run, Spec

# --- Rotary positions, interleaved ----------------------------------------------------------------

INTERLEAVED = ROTARY.narrowed(
    lambda case: case.arguments.keys() == {"x", "position_ids"} and not case.is_empty
    and case.arguments["position_ids"].ndim == 1 and case.dtype in (torch.float32, torch.float64)
    and case.arguments["x"].shape[-1] % 2 == 0,
    name="ch18.rotary_interleaved",
    statement="rotary_interleaved(x, position_ids): pair i = 0 ... d/2 - 1 is features 2i and 2i + 1; (a, b) becomes "
    "(a cos t - b sin t, a sin t + b cos t) with t = position / 10000^(2i/d). x (B, H, L, d), position_ids (L)",
    mutants=[
        each for each in ROTARY.mutants
        if each.name in {
            "rotated backwards", "a rotation without its minus", "the other pairing of features",
            "rotated features not interleaved again", "two angles in a pair", "rotary position IDs ignored",
            "rotary exponent i in place of 2i",
        }
    ],
    chapter=18,
    points=2,
)  # fmt: skip

# --- NTK-aware scaling ----------------------------------------------------------------------------


def ntk_frequencies(d, factor):
    """A larger base: the first frequency stays, the last is divided by the factor."""
    base = 10000.0 * factor ** (d / (d - 2))
    return base ** -(torch.arange(0, d, 2) / d)


def _frequencies_reference(d: int, factor: float) -> np.ndarray:
    """Pair by pair: that of the unscaled base, divided by a power of the factor."""
    pairs = range(d // 2)
    return np.array([10000.0 ** (-2 * i / d) / factor ** (2 * i / (d - 2)) for i in pairs])


@mistake(
    "the base times the factor",
    rejected_by="the last frequency is divided by the factor",
    symptom="The lowest frequency is divided by less than the factor: distant tokens still meet new angles.",
    cause="The last pair raises the base to (d - 2)/d, so the factor needs the inverse power, d/(d - 2).",
)
def base_times_factor(d, factor):
    """Without the power."""
    return (10000.0 * factor) ** -(torch.arange(0, d, 2) / d)


@mistake(
    "the power of NTK upside down",
    rejected_by="the last frequency is divided by the factor",
    symptom="The lowest frequency is divided by even less than with the factor itself.",
    cause="The factor is raised to (d - 2)/d in place of d/(d - 2).",
)
def upside_down(d, factor):
    """The inverse of the power."""
    return (10000.0 * factor ** ((d - 2) / d)) ** -(torch.arange(0, d, 2) / d)


@mistake(
    "interpolation in place of NTK",
    rejected_by="the first frequency is kept",
    symptom="Neighboring tokens are rotated by a smaller difference than in training.",
    cause="All frequencies are divided by the factor, where only the last is to be.",
)
def all_divided(d, factor):
    """Position interpolation."""
    return 10000.0 ** -(torch.arange(0, d, 2) / d) / factor


@mistake(
    "NTK with a smaller base",
    rejected_by="the last frequency is divided by the factor",
    symptom="Frequencies rise: a longer sequence has more new angles than without any scaling.",
    cause="The base is divided by the power of the factor, where a larger base gives lower frequencies.",
)
def smaller_base(d, factor):
    """Divided."""
    return (10000.0 / factor ** (d / (d - 2))) ** -(torch.arange(0, d, 2) / d)


@mistake(
    "the exponents of NTK without their 2",
    rejected_by="the last frequency is divided by the factor",
    symptom="All pairs but the first have too high a frequency, with or without scaling.",
    cause="Pair i has the exponent 2i/d: the steps of arange go by 2, or the divisor is d/2.",
)
def without_two(d, factor):
    """By pairs, over features."""
    return (10000.0 * factor ** (d / (d - 2))) ** -(torch.arange(d // 2) / d)


def _frequency_cases(rng: np.random.Generator) -> list[Case]:
    def case(label: str, d: int, factor: float) -> Case:
        return Case(label, {"d": d, "factor": factor}, torch.float32)

    return [
        case("four times as long", 16, 4.0),
        case("two pairs", 4, 2.0),
        case("as long as in training", 8, 1.0),
        case("a factor that is no integer", 6, 2.5),
        case("a usual head", 128, 8.0),
        case("by chance", 2 * int(rng.integers(2, 65)), float(rng.uniform(1.0, 32.0))),
    ]


def _in_float32(base: float) -> float:
    """The relative error of base^-e in float32: e <= 1 is rounded, and so is the power."""
    return 2 * (np.log(base) + 2) * float(np.finfo(np.float32).eps)


def _first_kept(run: Run, case: Case) -> Problem | None:
    found = run.value(case)[:1]
    return compare(np.ones(1), found, _in_float32(1.0), "the first frequency")


def _last_divided(run: Run, case: Case) -> Problem | None:
    """As a ratio of the last frequency without scaling."""
    d, factor = case.arguments["d"], case.arguments["factor"]
    base = 10000.0 * factor ** (d / (d - 2))
    ratio = 10000.0 ** (-(d - 2) / d) / run.value(case)[-1:]
    slack = factor * _in_float32(base)
    return compare(np.full(1, factor), ratio, slack, "the last frequency is divided by")


NTK_FREQUENCIES = Spec(
    name="ch18.ntk_frequencies",
    statement="ntk_frequencies(d, factor): the d/2 frequencies b^(-2i/d), i = 0 ... d/2 - 1, of NTK-aware scaling. The base b "
    "is so much larger than 10000 that the last frequency is that of the base 10000 divided by `factor`. d is even and at "
    "least 4. (d/2), float32 or float64",
    required=("d", "factor"),
    reference=_frequencies_reference,
    baseline=ntk_frequencies,
    differentiable=False,
    usual=(UNTOUCHED,),
    cases=_frequency_cases,
    checks=(
        Check(
            "the first frequency is kept",
            "The first pair has no new angles: its frequency is b^0 = 1 with any base.",
            _first_kept,
        ),
        Check(
            "the last frequency is divided by the factor",
            "Solve b'^(-(d - 2)/d) = 10000^(-(d - 2)/d) / factor for b'.",
            _last_divided,
        ),
    ),
    mutants=mistakes(base_times_factor, upside_down, all_divided, smaller_base, without_two),
    chapter=18,
    points=1,
)

EXERCISES = (INTERLEAVED, NTK_FREQUENCIES)
