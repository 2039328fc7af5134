"""The Spec of YaRN: a frequency for each pair, and the factor by which queries and keys are multiplied."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ... import reference
from ..checks import varied
from ..compare import Problem, compare
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants
from .mutants import YarnFormula


def _build(candidate: Any, arguments: dict[str, Any]) -> Any:
    """A function; of a class such as YarnScaling, its call and its attention_factor."""
    if not isinstance(candidate, type):
        return candidate

    def yarn(frequency, factor, trained, attention_factor=None):
        scaling = candidate(factor, trained, attention_factor=attention_factor)
        return torch.cat((scaling(frequency), frequency.new_tensor([scaling.attention_factor])))

    return yarn


def _frequency(d: int, base: float = 10000.0) -> np.ndarray:
    return base ** -(np.arange(0, d, 2) / d)


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, d, factor, trained, dtype=torch.float64, base=10000.0, **options) -> Case:
        arguments = {"frequency": _frequency(d, base), "factor": factor, "trained": trained}
        return Case(label, arguments | options, dtype)

    return [
        case("a small head", 16, 4.0, 20),
        case("a usual head", 128, 4.0, 4096),
        case("a factor of the configuration", 128, 8.0, 4096, attention_factor=1.0),
        case("another factor of the configuration", 64, 64.0, 2048, attention_factor=1.25),
        case("as long as in training", 32, 1.0, 512),
        case("a large base", 64, 16.0, 8192, base=500_000.0),
        case("float32", 64, 4.0, 2048, torch.float32),
        case("by chance", 2 * int(rng.integers(8, 65)), float(rng.uniform(1.5, 40.0)), 4096),
    ]


def _usual(run: Run, case: Case) -> Problem | None:
    plain = varied(case, "no factor given", attention_factor=None)
    wanted = np.array([0.1 * np.log(case.arguments["factor"]) + 1.0])
    slack = 8 * torch.finfo(case.dtype).eps * wanted[0]
    return compare(wanted, run.value(plain)[-1:], slack, "the attention factor")


def _given(run: Run, case: Case) -> Problem | None:
    wanted = np.array([1.5])
    found = run.value(case, attention_factor=1.5)[-1:]
    return compare(wanted, found, 0.0, "the attention factor, given as 1.5,")


def _turns(case: Case) -> np.ndarray:
    return case.arguments["trained"] * case.arguments["frequency"] / (2 * np.pi)


def _stays(run: Run, case: Case) -> Problem | None:
    """Pairs before the one with 32 turns, whose index is rounded down: a pair earlier."""
    frequency, many = case.arguments["frequency"], _turns(case) >= 32.0
    many[1:] = many[1:] & (_turns(case)[:-1] >= 32.0) & np.append(many[2:], False)
    slack = 4 * torch.finfo(case.dtype).eps
    return compare(
        frequency[many], run.value(case)[:-1][many], slack, "frequencies of 32 turns and more"
    )


def _divided(run: Run, case: Case) -> Problem | None:
    """Pairs behind the one with a single turn, whose index is rounded up."""
    frequency, few = case.arguments["frequency"], _turns(case) <= 1.0
    few[1:] = few[1:] & few[:-1]
    few[0] = False
    wanted = frequency[few] / case.arguments["factor"]
    slack = 4 * torch.finfo(case.dtype).eps
    return compare(wanted, run.value(case)[:-1][few], slack, "frequencies of a turn and less")


YARN = Spec(
    name="yarn",
    statement="yarn(frequency, factor, trained, attention_factor=None): frequency (d/2) -> (d/2 + 1), the scaled frequencies "
    "and then the attention factor, by which queries and keys are multiplied: the one that is given, otherwise 0.1 ln(factor) + "
    "1. With i(t) the index of the pair that makes t turns in `trained` tokens, the ramp r goes from 0 at floor(i(32)) to 1 at "
    "ceil(i(1)), within 0 and d - 1, and the frequency is (1 - r) f + r f / factor. Or a class(factor, trained, *, "
    "attention_factor) with a call and the attribute attention_factor",
    required=("frequency", "factor", "trained"),
    reference=reference.yarn,
    baseline=YarnFormula(),
    differentiable=False,
    cases=_cases,
    build=_build,
    checks=(
        Check(
            "a given attention factor is used",
            "The configuration's attention factor replaces the computed one.",
            _given,
        ),
        Check(
            "the usual attention factor is 0.1 ln(factor) + 1",
            "Queries and keys are multiplied by it, each: scores by its square.",
            _usual,
        ),
        Check(
            "a pair with many turns stays",
            "A pair that makes 32 turns in training or more keeps its frequency.",
            _stays,
            when=lambda case: case.arguments["trained"] > 1000,
        ),
        Check(
            "a pair with few turns is divided by the factor",
            "A pair that makes a turn in training or less has its frequency divided by the factor.",
            _divided,
        ),
    ),
    mutants=mistakes_in(mutants),
    chapter=18,
)
