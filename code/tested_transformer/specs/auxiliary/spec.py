"""The Specs of the character Transformer's auxiliary losses: which layers count, and the weighted sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ... import reference
from ..checks import varied
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import UNTOUCHED, Case, Check, Run, Spec
from . import mutants
from .mutants import LossFormula, layer_weights

# --- Which layers count ---------------------------------------------------------------------------


def _schedule_cases(rng: np.random.Generator) -> list[Case]:
    def case(label: str, num_layers: int, progress: float) -> Case:
        return Case(label, {"num_layers": num_layers, "progress": progress}, torch.float32)

    return [
        case("at the beginning", 4, 0.0),
        case("the lowest layer has just stopped", 4, 0.125),
        case("two have stopped", 4, 0.3),
        case("all but the last have stopped", 4, 0.4),
        case("the end", 4, 1.0),
        case("one layer", 1, 0.75),
        case("two layers", 2, 0.2),
        case("64 layers", 64, 0.31),
        case("by chance", int(rng.integers(2, 40)), float(rng.uniform(0.01, 0.49))),
    ]


def _first(run: Run, case: Case) -> Problem | None:
    n = case.arguments["num_layers"]
    found = run.value(case, progress=0.0)
    return compare(np.ones(n), found, 0.0, "the weights before the first step")


def _last(run: Run, case: Case) -> Problem | None:
    for progress in (0.0, 0.5, 1.0):
        found = run.value(case, progress=progress)[-1:]
        problem = compare(np.ones(1), found, 0.0, f"the last layer's weight at {progress}")
        if problem is not None:
            return problem
    return None


def _lower(run: Run, case: Case) -> Problem | None:
    """At a quarter of the training, about half of the layers have stopped: the lower ones."""
    wanted = np.array([0.0] * 4 + [1.0] * 4)
    return compare(
        wanted,
        run.value(case, num_layers=8, progress=0.26),
        0.0,
        "of 8 layers at 0.26, the weights",
    )


def _half(run: Run, case: Case) -> Problem | None:
    n = case.arguments["num_layers"]
    wanted = np.array([0.0] * (n - 1) + [1.0])
    return compare(wanted, run.value(case, progress=0.5), 0.0, "the weights at half")


LAYER_WEIGHTS = Spec(
    name="layer_weights",
    statement="layer_weights(num_layers, progress): which layers' losses count, (n,) of 1 and 0. progress is the share of the "
    "training that is done, 0 to 1. Layer l = 1 ... n - 1 counts while progress < l / 2n, the last layer always",
    required=("num_layers", "progress"),
    reference=reference.layer_weights,
    baseline=layer_weights,
    differentiable=False,
    usual=(UNTOUCHED,),
    cases=_schedule_cases,
    checks=(
        Check(
            "at the beginning every layer counts",
            "Layer 1 stops after 1/2n of the training, not before the first step.",
            _first,
        ),
        Check(
            "the last layer always counts",
            "Only intermediate layers stop: the last one makes the predictions.",
            _last,
        ),
        Check(
            "after half of the training one layer counts",
            "Layer l stops after l/2n, so all but the last have stopped at one half.",
            _half,
        ),
        Check(
            "lower layers stop first",
            "Layer l stops after l/2n of the training: the lowest is the first.",
            _lower,
        ),
    ),
    mutants=mistakes_in(mutants, of="layer_weights"),
    chapter=18,
)

# --- The weighted sum -----------------------------------------------------------------------------


def _arguments(rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, Any]:
    _, _, batch, length, vocab = shape
    return {
        "logits": 2.0 * rng.normal(size=shape),
        "ids": rng.integers(0, vocab, (batch, length)),
    }


def _loss_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, shape, progress, dtype=torch.float64, **options) -> Case:
        return Case(label, _arguments(rng, shape) | {"progress": progress, **options}, dtype)

    return [
        case("one layer, one target", (1, 1, 1, 3, 4), 0.0),
        case("two layers", (2, 1, 2, 4, 5), 0.1),
        case("two targets", (1, 2, 2, 5, 4), 0.0),
        case("three layers, two targets, at the beginning", (3, 2, 2, 5, 6), 0.0),
        case("three layers, one has stopped", (3, 2, 2, 5, 6), 0.25),
        case("after half of the training", (3, 2, 2, 4, 5), 0.75),
        case("three targets, another weight", (2, 3, 1, 6, 4), 0.0, extra_weight=0.25),
        case("as many targets as characters", (2, 3, 2, 3, 4), 0.0),
        case("float32", (2, 2, 2, 6, 7), 0.1, torch.float32),
    ]


def _loss_by_chance(draw: Draw) -> Case:
    shape = (draw.one_of(2, 1, 5), draw.one_of(2, 1, 3), draw.one_of(1, 3))
    shape = (*shape, draw.one_of(4, 2, 9), draw.one_of(5, 2))
    options = {"progress": draw.one_of(0.0, 0.15, 0.45, 0.9)}
    dtype = draw.one_of(torch.float64, torch.float32)
    return Case("sizes by chance", _arguments(draw.numbers, shape) | options, dtype)


def _sure(run: Run, case: Case) -> Problem | None:
    """Classifiers that know their targets, each its own; where there is none, those that wrap around."""
    logits, ids = np.zeros_like(case.arguments["logits"]), case.arguments["ids"]
    length = ids.shape[1]
    for k in range(logits.shape[1]):
        for b, t in np.ndindex(ids.shape):
            logits[:, k, b, t, ids[b, (t + k + 1) % length]] = 60.0
    sure = varied(case, "sure", logits=logits)
    return unchanged(
        np.zeros(()), run.value(sure), 2 * run.expected(sure)[1] + 1e-20,
        "every classifier knows its target", "the loss, 0,",
    )  # fmt: skip


def _alone(run: Run, case: Case) -> Problem | None:
    """At the end of the training, without extra targets: one mean over the positions of one layer."""
    last = varied(case, "the last layer", logits=case.arguments["logits"][-1:, :1], progress=1.0)
    whole = varied(case, "the end", logits=case.arguments["logits"][:, :1], progress=1.0)
    slack = run.expected(last)[1] + run.expected(whole)[1]
    return unchanged(
        run.spec.expected(last), run.value(whole), slack, "the training ends", "the loss"
    )


def _extra(run: Run, case: Case) -> Problem | None:
    """With a weight of 0, only the next characters count."""
    first = varied(case, "the next characters", logits=case.arguments["logits"][:, :1])
    slack = run.expected(first)[1] + run.expected(case)[1]
    return unchanged(
        run.value(first), run.value(case, extra_weight=0.0), slack,
        "the extra targets have the weight 0", "the loss",
    )  # fmt: skip


def _beyond(run: Run, case: Case) -> Problem | None:
    logits = case.arguments["logits"].copy()
    for k in range(logits.shape[1]):
        logits[:, k, :, max(logits.shape[3] - k - 1, 0) :] *= -3.0
    slack = 2 * run.expected(case)[1]
    return unchanged(
        run.value(case), run.value(case, logits=logits), slack,
        "the logits of positions without a target change", "the loss",
    )  # fmt: skip


def _positions(run: Run, case: Case) -> Problem | None:
    """Another first prediction, another loss."""
    logits = case.arguments["logits"].copy()
    logits[-1, 0, :, 0] *= -2.0
    if not np.array_equal(run.value(case), run.value(case, logits=logits)):
        return None
    return Problem("another loss when the first position's logits change", "the same")


def _long(case: Case) -> bool:
    return case.arguments["logits"].shape[3] > 2 and case.dtype == torch.float64


AUXILIARY_LOSS = Spec(
    name="auxiliary_loss",
    statement="auxiliary_loss(logits, ids, *, progress, extra_weight=0.5): the weighted sum of the losses of n layers and K "
    "targets, a number. logits (n, K, B, L, V), ids (B, L) are the characters that were read. At position t, target k = 0, 1 ... "
    "is ids[t + k + 1]; its loss is the mean over the positions that have one, and counts extra_weight times for k > 0. Layer "
    "l = 1 ... n - 1 counts while progress < l / 2n, the last layer always",
    required=("logits", "ids"),
    reference=reference.auxiliary_loss,
    baseline=LossFormula(),
    cases=_loss_cases,
    combine=_loss_by_chance,
    num_drawn=4,
    checks=(
        Check(
            "target k is k + 1 characters further",
            "At position t, target k is the character t + k + 1.",
            _sure,
            when=lambda case: case.dtype == torch.float64,
        ),
        Check(
            "positions without a target do not count",
            "The last k + 1 positions have no target k: their logits must not matter.",
            _beyond,
            when=lambda case: case.dtype == torch.float64,
        ),
        Check(
            "every position predicts",
            "All positions that have a target count, not the last one alone.",
            _positions,
            when=_long,
        ),
        Check(
            "at the end the last layer's loss is the loss",
            "After half of the training only the last layer counts, and it counts in full.",
            _alone,
            when=_long,
        ),
        Check(
            "an extra target has its own weight",
            "The losses of all targets but the next character are multiplied by extra_weight.",
            _extra,
            when=lambda case: _long(case) and case.arguments["logits"].shape[1] > 1,
        ),
    ),
    mutants=mistakes_in(mutants, of="auxiliary_loss"),
    chapter=18,
)
