"""Exercises of chapter 18 on rotary positions for longer texts: which pairs meet new angles, dynamic NTK."""

from __future__ import annotations

import numpy as np
import torch

from ..specs.compare import Problem, compare
from ..specs.dynamic_ntk.spec import DYNAMIC_BASE as SPEC
from ..specs.mistakes import mistake, mistakes
from ..specs.spec import SHAPE, UNTOUCHED, Case, Check, Run, Spec

# --- Pairs that meet new angles -------------------------------------------------------------------


def _turns(d, base, trained):
    """The full turns of each pair in the trained length."""
    return trained * base ** -(torch.arange(0, d, 2).double() / d) / (2 * torch.pi)


def new_angles(d, base, trained):
    """The pairs that made less than one full turn in training."""
    return _turns(d, base, trained) < 1


def _new_angles_reference(d: int, base: float, trained: int) -> np.ndarray:
    """Pair by pair: the wavelength is longer than the texts of training."""
    wavelengths = [2 * np.pi * base ** (2 * i / d) for i in range(d // 2)]
    return np.array([wavelength > trained for wavelength in wavelengths])


@mistake(
    "radians counted as turns",
    rejected_by="one full turn in training is the border",
    symptom="Some pairs that leave their range keep their frequency.",
    cause="A full turn has 2 pi radians: the angle is compared with 1.",
)
def radians(d, base, trained):
    """Without 2 pi."""
    return 2 * torch.pi * _turns(d, base, trained) < 1


@mistake(
    "the pairs that have covered their angles",
    rejected_by="a pair that rotates fast is left alone",
    symptom="Near tokens become hard to tell apart, and distant ones still meet new angles.",
    cause="The comparison is the wrong way around.",
)
def the_others(d, base, trained):
    """More than a turn."""
    return _turns(d, base, trained) > 1


@mistake(
    "every pair below 32 turns",
    rejected_by="one full turn in training is the border",
    symptom="Pairs are divided in full that YaRN divides in part.",
    cause="32 turns is where YaRN's ramp begins. New angles begin below one turn.",
)
def below_32(d, base, trained):
    """The other end of the ramp."""
    return _turns(d, base, trained) < 32


@mistake(
    "turns with the usual base, whatever the model's",
    rejected_by="a larger base has more pairs with new angles",
    symptom="Right for a base of 10,000; with 500,000, slow pairs leave their range.",
    cause="The base is a number in the code, where the model's configuration has its own.",
)
def usual_base(d, base, trained):
    """Always 10,000."""
    return _turns(d, 10000.0, trained) < 1


@mistake(
    "pair i with the exponent i/d",
    rejected_by="one full turn in training is the border",
    symptom="All pairs but the first count as faster than they are.",
    cause="Pair i has the exponent 2i/d: the steps of arange go by 2, or the divisor is d/2.",
)
def half_exponent(d, base, trained):
    """Without the 2."""
    return trained * base ** -(torch.arange(d // 2).double() / d) / (2 * torch.pi) < 1


def _new_angles_cases(rng: np.random.Generator) -> list[Case]:
    def case(label: str, d: int, base: float, trained: int) -> Case:
        return Case(label, {"d": d, "base": base, "trained": trained})

    return [
        case("the pairs of the page", 8, 10000.0, 1000),
        case("trained on ten times as much", 8, 10000.0, 10_000),
        case("a usual head", 128, 10000.0, 4096),
        case("a large base", 128, 500_000.0, 8192),
        case("two pairs", 4, 10000.0, 400),
        case("by chance", 2 * int(rng.integers(8, 65)), 10000.0, int(rng.integers(300, 9000))),
    ]


def _fast(run: Run, case: Case) -> Problem | None:
    found = run.value(case)[:1]
    return compare(np.zeros(1), found.astype(float), 0.0, "whether pair 0 meets new angles")


def _larger_base(run: Run, case: Case) -> Problem | None:
    few, many = (run.value(case, base=base).sum() for base in (1.1, 1e9))
    if many > few:
        return None
    return Problem("more pairs with a base of 1e9 than with 1.1", f"{many} and {few}")


def _border(run: Run, case: Case) -> Problem | None:
    """A tenth less than the last pair's full turn, and a tenth more: float32 will do."""
    d, base = case.arguments["d"], case.arguments["base"]
    turn = 2 * np.pi * base ** ((d - 2) / d)
    less, more = int(0.9 * turn), int(1.1 * turn)
    last = [run.value(case, trained=length)[-1:].astype(float) for length in (less, more)]
    what = f"whether the last pair meets new angles if trained on {less} and on {more} tokens"
    return compare(np.array([1.0, 0.0]), np.concatenate(last), 0.0, what)


NEW_ANGLES = Spec(
    name="ch18.new_angles",
    statement="new_angles(d, base, trained): for each of the d/2 pairs of rotary features, with the frequencies "
    "base^(-2i/d), i = 0 ... d/2 - 1, whether it made less than one full turn in `trained` tokens. (d/2), bool",
    required=("d", "base", "trained"),
    reference=_new_angles_reference,
    baseline=new_angles,
    differentiable=False,
    usual=(SHAPE, UNTOUCHED),
    cases=_new_angles_cases,
    checks=(
        Check(
            "a pair that rotates fast is left alone",
            "Pair 0 rotates by one radian per position: it made many turns in training.",
            _fast,
        ),
        Check(
            "a larger base has more pairs with new angles",
            "With a larger base, the frequencies fall faster from pair to pair.",
            _larger_base,
        ),
        Check(
            "one full turn in training is the border",
            "A pair makes trained x frequency / (2 pi) full turns. Below one it has not met all angles.",
            _border,
        ),
    ),
    mutants=mistakes(radians, the_others, below_32, usual_base, half_exponent),
    chapter=18,
    points=1,
)

# --- Dynamic NTK ----------------------------------------------------------------------------------

DYNAMIC_BASE = SPEC.narrowed(
    lambda case: True, name="ch18.dynamic_base", mutants=SPEC.mutants, chapter=18, points=2
)

EXERCISES = (NEW_ANGLES, DYNAMIC_BASE)
