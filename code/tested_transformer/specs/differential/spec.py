"""The Spec of differential attention: what both heads of a pair attend to cancels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ... import reference
from ..checks import any_dtype, transposed
from ..compare import Problem, compare
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants


def _arguments(
    rng: np.random.Generator, batch, heads, groups, lengths, d, d_value
) -> dict[str, Any]:
    length, keys = lengths
    return {
        "query": rng.normal(size=(batch, heads, length, d)),
        "key": rng.normal(size=(batch, groups, keys, d)),
        "value": rng.normal(size=(batch, groups, keys, d_value)),
        "lambda_": np.asarray(rng.uniform(0.2, 0.8)),
    }


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, **options) -> Case:
        return Case(label, _arguments(rng, *sizes) | options, dtype)

    turned = _arguments(rng, 1, 4, 2, (3, 4), 2, 3)
    return [
        case("one pair", 1, 2, 2, (2, 3), 3, 2),
        case("two pairs", 2, 4, 4, (3, 4), 2, 3),
        case("causal", 1, 4, 4, (4, 4), 3, 2, causal=True),
        case("causal, after a cache", 2, 2, 2, (2, 5), 3, 4, causal=True),
        case("grouped queries", 1, 8, 4, (3, 3), 2, 3),
        case("one pair of KV heads", 2, 6, 2, (3, 4), 2, 2, causal=True),
        case("float32", 2, 4, 2, (3, 5), 4, 3, dtype=torch.float32),
        Case("transposed tensors", transposed(turned) | {"lambda_": np.asarray(-0.5)}),
    ]  # fmt: skip


def _by_chance(draw: Draw) -> Case:
    groups = draw.one_of(2, 4)
    heads, length = groups * draw.one_of(1, 2, 3), draw.one_of(2, 1, 4)
    lengths = length, length + draw.one_of(0, 2)
    sizes = draw.one_of(1, 2), heads, groups, lengths, draw.one_of(3, 2), draw.one_of(2, 3)
    options = draw.one_of({}, {"causal": True})
    return Case("sizes by chance", _arguments(draw.numbers, *sizes) | options, any_dtype(draw))


def _sums(run: Run, case: Case) -> Problem | None:
    got = run.value(case, value=np.ones_like(case.arguments["value"]))
    wanted = np.full(got.shape, 1 - float(case.arrays()["lambda_"]))
    slack = 4 * case.rounding(case.arguments["key"].shape[2] + case.arguments["key"].shape[3])
    return compare(wanted, got, slack, "with values of 1, the output")


def _taken_off(run: Run, case: Case) -> Problem | None:
    """lambda of 1, and the second half of the heads as the first: nothing is left."""
    changes = {"lambda_": np.asarray(1.0)}
    for name in ("query", "key"):
        half = case.arguments[name][:, : case.arguments[name].shape[1] // 2]
        changes[name] = np.concatenate((half, half), 1)
    got = run.value(case, **changes)
    largest = np.abs(case.arguments["value"]).max()
    slack = (
        4 * largest * case.rounding(case.arguments["key"].shape[2] + case.arguments["key"].shape[3])
    )
    return compare(
        np.zeros_like(got), got, slack, "where both halves of the heads are equal, the output"
    )


DIFFERENTIAL_ATTENTION = Spec(
    name="differential_attention",
    statement="differential_attention(query, key, value, lambda_, *, causal): for each i below H/2 the attention weights "
    "of head i minus lambda_ times those of head i + H/2, times the values of KV heads g and g + G/2 side by side, "
    "where g is the KV head of head i. Scores are divided by sqrt(d). query (B, H, L, d), key (B, G, S, d), value "
    "(B, G, S, dv), H and G even, lambda_ () -> (B, H/2, L, 2 dv)",
    required=("query", "key", "value", "lambda_"),
    reference=reference.differential_attention,
    baseline=mutants.DifferentialFormula(),
    cases=_cases,
    combine=_by_chance,
    num_drawn=4,
    checks=(
        Check(
            "weights sum to 1 - lambda",
            "Each softmax sums to 1; one is taken off lambda times.",
            _sums,
        ),
        Check(
            "the second half of the heads is taken off",
            "With lambda of 1, two equal halves of the heads cancel.",
            _taken_off,
        ),
    ),
    mutants=mistakes_in(mutants, "differential_attention"),
    chapter=21,
)
