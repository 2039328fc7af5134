"""An exercise of chapter 22, on its page about a search of this book: the mean over real tokens."""

from __future__ import annotations

import numpy as np
import torch

from ..experiments.ch22_book import masked_mean
from ..specs.compare import Problem, compare
from ..specs.mistakes import mistake, mistakes
from ..specs.spec import Case, Check, Run, Spec


def _reference(hidden: np.ndarray, real: np.ndarray) -> np.ndarray:
    answer = np.zeros((hidden.shape[0], hidden.shape[2]), dtype=np.float64)
    for b, (vectors, kept) in enumerate(zip(hidden, real, strict=True)):
        chosen = [vector for vector, keep in zip(vectors, kept, strict=True) if keep]
        for vector in chosen:
            answer[b] += vector / len(chosen)
    return answer


@mistake(
    "padding counts in the mean of a text",
    rejected_by="more padding changes nothing",
    cause="mean(1) also averages the outputs at padding, so a text's vector depends on the longest text of its batch.",
    seen="huggingface/transformers issue 17463",
)
def over_padding(hidden, real):
    """The mean over all positions."""
    return hidden.mean(1)


@mistake(
    "the sum without padding, divided by all positions",
    rejected_by="more padding changes nothing",
    cause="Padding is zeroed and still counted: the sum is divided by L, not by the number of real tokens.",
)
def divided_by_length(hidden, real):
    """Right direction, wrong norm."""
    return (hidden * real[..., None]).mean(1)


@mistake(
    "padding decides the first position",
    rejected_by="padding may be on the left",
    cause="The first n vectors are averaged, n the number of real tokens: right for padding on the right alone.",
)
def first_ones(hidden, real):
    """Counts, and takes as many from the left."""
    first = torch.arange(hidden.shape[1]) < real.sum(1, keepdim=True)
    return masked_mean(hidden, first)


@mistake(
    "the mean of no token is NaN",
    rejected_by="a text without tokens is zeros",
    cause="0 / 0: divide by at least 1.",
)
def nan_of_nothing(hidden, real):
    """Without clamp."""
    return (hidden * real[..., None]).sum(1) / real.sum(1, keepdim=True)


def _cases(rng: np.random.Generator) -> list[Case]:
    def case(label: str, real: list[list[int]], d: int) -> Case:
        mask = np.array(real, dtype=bool)
        return Case(label, {"hidden": rng.normal(size=(*mask.shape, d)), "real": mask})

    return [
        case("padding on the right", [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]], 3),
        case("padding on the left", [[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]], 2),
        case("no padding", [[1, 1], [1, 1]], 4),
        case("a text without tokens", [[1, 1, 0], [0, 0, 0]], 2),
        case("one token", [[1]], 1),
    ]


def _more_padding(run: Run, case: Case) -> Problem | None:
    hidden, real = case.arguments["hidden"], case.arguments["real"]
    longer = np.concatenate((hidden, np.full_like(hidden, 9.0)), 1)
    more = {"hidden": longer, "real": np.concatenate((real, np.zeros_like(real)), 1)}
    wanted, slack = run.expected(case, **more)
    return compare(wanted, run.value(case, **more), slack, "with twice as many positions, the mean")


def _of_case(run: Run, case: Case) -> Problem | None:
    wanted, slack = run.expected(case)
    return compare(wanted, run.value(case), slack, "the mean")


MASKED_MEAN = Spec(
    name="ch22.masked_mean",
    statement="masked_mean(hidden, real): for each text the mean of the vectors of its real tokens; zeros for a text "
    "without any. hidden (B, L, D), real (B, L), True for a token that is not padding -> (B, D)",
    required=("hidden", "real"),
    reference=_reference,
    baseline=masked_mean,
    cases=_cases,
    checks=(
        Check(
            "more padding changes nothing",
            "A text's vector must not depend on the other texts of its batch.",
            _more_padding,
            when=lambda case: case.arguments["real"][:, 0].all(),
        ),
        Check(
            "padding may be on the left",
            "The mask says which positions count, not how many.",
            _of_case,
            when=lambda case: not case.arguments["real"][:, 0].any(),
        ),
        Check(
            "a text without tokens is zeros",
            "The number of tokens that is divided by is at least 1.",
            _of_case,
            when=lambda case: not case.arguments["real"].any(1).all(),
        ),
    ),
    mutants=mistakes(over_padding, divided_by_length, first_ones, nan_of_nothing),
    chapter=22,
    points=1,
)

EXERCISES = (MASKED_MEAN,)
