"""The Specs of hyper-connections and of gated attention: with the first weights, what they replace."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ... import reference
from ..checks import any_dtype
from ..compare import Problem, compare
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants


def _arguments(rng: np.random.Generator, batch, streams, width, *, dynamic=False) -> dict[str, Any]:
    axes = batch if dynamic else ()
    return {
        "streams": rng.normal(size=(*batch, streams, width)),
        "weight": rng.normal(size=(width, width)) / width**0.5,
        "alpha": rng.normal(size=(*axes, streams, 1 + streams)),
        "beta": rng.normal(size=(*axes, streams)),
    }


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, **options) -> Case:
        return Case(label, _arguments(rng, *sizes, **options), dtype)

    fixed = _arguments(rng, (2, 2), 3, 4, dynamic=True)
    return [
        case("one stream", (3,), 1, 2),
        case("two streams", (2,), 2, 3),
        case("weights of each token", (2, 3), 2, 3, dynamic=True),
        case("four streams", (2,), 4, 3),
        Case(
            "float32, one alpha, the beta of each token",
            fixed | {"alpha": fixed["alpha"][0, 0]},
            torch.float32,
        ),
        case("no tokens", (0,), 2, 3),
    ]


def _by_chance(draw: Draw) -> Case:
    batch, streams, width = draw.one_of((2,), (1,), (2, 3)), draw.one_of(2, 1, 3), draw.one_of(3, 2)
    options = draw.one_of({}, {"dynamic": True})
    return Case(
        "sizes by chance",
        _arguments(draw.numbers, batch, streams, width, **options),
        any_dtype(draw),
    )


def _first_weights(case: Case) -> dict[str, np.ndarray]:
    """Copies of x, the last stream read, all mixed with nothing but themselves, written with 1."""
    streams = case.arguments["streams"]
    count = streams.shape[-2]
    read = np.eye(count)[:, -1:]
    return {
        "streams": np.broadcast_to(streams[..., :1, :], streams.shape).copy(),
        "alpha": np.concatenate((read, np.eye(count)), 1), "beta": np.ones(count),
    }  # fmt: skip


def _bound(case: Case) -> float:
    arrays = case.arguments
    count, width = arrays["streams"].shape[-2:]
    largest = {name: float(np.abs(a).max(initial=1.0)) for name, a in arrays.items()}
    size = (
        largest["alpha"]
        * largest["streams"]
        * count
        * (1 + largest["beta"] * largest["weight"] * width)
    )
    return case.rounding(count + width) * size


def _is_a_residual(run: Run, case: Case) -> Problem | None:
    changes = _first_weights(case)
    arrays = case.arrays(**changes)
    x = arrays["streams"]
    wanted = (x + x @ arrays["weight"].T).astype(np.float64)
    return compare(
        wanted, run.value(case, **changes), _bound(case), "with the first weights, the streams"
    )


def _nothing_written(run: Run, case: Case) -> Problem | None:
    """With beta of 0 the streams are mixed, and the sublayer is not heard."""
    changes = {"beta": np.zeros_like(case.arguments["beta"])}
    arrays = case.arrays()
    wanted = np.swapaxes(arrays["alpha"][..., 1:], -1, -2) @ arrays["streams"]
    got = run.value(case, **changes)
    return compare(
        wanted.astype(np.float64), got, _bound(case), "with nothing written, the streams"
    )


def _build(candidate: Any, arguments: dict[str, Any]) -> Any:
    def call(streams, weight, alpha, beta):
        return candidate(streams, lambda h: h @ weight.mT, alpha, beta)

    return call


HYPER_CONNECTION = Spec(
    name="hyper_connection",
    statement="hyper_connection(streams, sublayer, alpha, beta): the sublayer gets the sum of the streams weighted by "
    "column 0 of alpha; stream j becomes the sum of the streams weighted by column 1 + j, plus beta_j times the sublayer's "
    "output. streams (*batch, n, D), sublayer (*batch, D) -> (*batch, D), alpha (n, 1 + n) or (*batch, n, 1 + n), beta (n) or "
    "(*batch, n) -> (*batch, n, D)",
    required=("streams", "weight", "alpha", "beta"),
    reference=reference.hyper_connection,
    baseline=mutants.HyperFormula().plainly,
    build=_build,
    cases=_cases,
    combine=_by_chance,
    num_drawn=4,
    checks=(
        Check(
            "the first weights make a residual connection",
            "Copies of x, one of them read, written to each with weight 1: x + f(x).",
            _is_a_residual,
        ),
        Check(
            "without writing the streams are mixed",
            "Columns 1 to n of alpha weigh the streams that go on.",
            _nothing_written,
        ),
    ),
    mutants=mistakes_in(mutants, "hyper_connection"),
    chapter=21,
)  # fmt: skip

# --- The gate -------------------------------------------------------------------------------------


def _gate_arguments(rng: np.random.Generator, batch, n, width) -> dict[str, Any]:
    return {
        "heads": rng.normal(size=(*batch, n)), "x": rng.normal(size=(*batch, width)),
        "gate": rng.normal(size=(n, width)), "output": rng.normal(size=(width, n)) / n**0.5,
    }  # fmt: skip


def _gate_cases(rng: np.random.Generator) -> list[Case]:
    return [
        Case("one token", _gate_arguments(rng, (1,), 2, 2)),
        Case("as many numbers in the heads as features", _gate_arguments(rng, (2, 3), 4, 4)),
        Case("larger heads", _gate_arguments(rng, (3,), 6, 4)),
        Case("float32", _gate_arguments(rng, (2, 2), 4, 4), torch.float32),
    ]


def _half(run: Run, case: Case) -> Problem | None:
    """Gate weights of 0: the sigmoid is one half."""
    got = run.value(case, gate=np.zeros_like(case.arguments["gate"]))
    arrays = case.arrays()
    wanted = (arrays["heads"] @ arrays["output"].T / 2).astype(np.float64)
    terms = case.arguments["heads"].shape[-1]
    largest = float(np.abs(case.arguments["heads"]).max() * np.abs(case.arguments["output"]).max())
    return compare(
        wanted, got, case.rounding(terms) * terms * largest, "with gate weights of 0, the output"
    )


GATED_HEADS = Spec(
    name="gated_heads",
    statement="gated_heads(heads, x, gate, output): (heads * sigmoid(x gate^T)) output^T. heads (*batch, n), x (*batch, D), "
    "gate (n, D), output (E, n) -> (*batch, E)",
    required=("heads", "x", "gate", "output"),
    reference=reference.gated_heads,
    baseline=mutants.GateFormula(),
    cases=_gate_cases,
    checks=(Check("a gate of 0 halves", "sigmoid(0) is one half.", _half),),
    mutants=mistakes_in(mutants, "gated_heads"),
    chapter=21,
)
