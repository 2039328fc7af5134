"""The Spec of moving query and key weights from interleaved pairs to halves."""

from __future__ import annotations

import numpy as np

from ..compare import Problem, compare
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants
from .mutants import to_halves


def _halves_reference(weight, num_heads) -> np.ndarray:
    """Row by row."""
    moved, size = np.empty_like(weight), len(weight) // num_heads
    for head in range(num_heads):
        for pair in range(size // 2):
            for member in range(2):
                row = head * size
                moved[row + member * size // 2 + pair] = weight[row + 2 * pair + member]
    return moved


def _halves_cases(rng: np.random.Generator) -> list[Case]:
    def case(label, num_heads, size, columns) -> Case:
        weight = rng.normal(size=(num_heads * size, columns))
        return Case(label, {"weight": weight, "num_heads": num_heads})

    return [
        case("one head, one pair", 1, 2, 3),
        case("one head, three pairs", 1, 6, 2),
        case("two heads", 2, 4, 5),
        case("three heads of six", 3, 6, 4),
        case("two heads of eight", 2, 8, 1),
    ]


def _own_head(run: Run, case: Case) -> Problem | None:
    """Where every row holds the number of its head, nothing changes."""
    heads, weight = case.arguments["num_heads"], case.arguments["weight"]
    numbers = np.repeat(np.arange(1.0, heads + 1), len(weight) // heads)[:, None]
    numbers = np.broadcast_to(numbers, weight.shape).copy()
    return compare(numbers, run.value(case, weight=numbers), 0.0, "the head of each row")


TO_HALVES = Spec(
    name="to_halves",
    statement="to_halves(weight, num_heads): weight (H d, D), the rows of each head together, in pairs 2i and 2i + 1. Returns "
    "it with the rows of each head in the order 0, 2, 4, ..., 1, 3, 5, ...",
    required=("weight", "num_heads"),
    reference=_halves_reference,
    baseline=to_halves,
    cases=_halves_cases,
    checks=(
        Check(
            "rows stay in their head",
            "The permutation is within each head.",
            _own_head,
        ),
    ),
    mutants=mistakes_in(mutants),
    chapter=18,
)
