"""The Spec of latent attention, in either form: keys written out, or absorbed into the queries."""

from __future__ import annotations

import numpy as np
import torch

from ... import reference
from ..checks import any_dtype, larger, transposed
from ..compare import Problem, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants

NAMES = ("query", "rotary_query", "latent", "rotary_key", "up_key", "up_value")


def _arguments(rng: np.random.Generator, batch, heads, sizes, widths) -> dict:
    (length, keys), (own, rotary, latent, value) = sizes, widths
    shapes = (
        (batch, heads, length, own), (batch, heads, length, rotary), (batch, keys, latent),
        (batch, keys, rotary), (heads, own, latent), (heads, value, latent),
    )  # fmt: skip
    return {name: rng.normal(size=shape) for name, shape in zip(NAMES, shapes, strict=True)}


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, **options) -> Case:
        return Case(label, _arguments(rng, *sizes) | options, dtype)

    small = (2, 3, (4, 4), (5, 2, 7, 6))
    own_masks = np.arange(60).reshape(2, 3, 2, 5) % 7 > 1
    return [
        case("one head, one key", 1, 1, (1, 1), (2, 2, 3, 2)),
        case("two heads, three tokens", 1, 2, (3, 3), (3, 2, 4, 2)),
        case("causal", *small, causal=True),
        case("one query after a cache", 2, 3, (1, 5), (4, 2, 6, 3), causal=True),
        case(
            "a mask of each head, after a cache",
            2,
            3,
            (2, 5),
            (3, 4, 5, 6),
            causal=True,
            mask=own_masks,
        ),
        case("a mask", *small, mask=np.tril(np.ones((4, 4), bool), 1)),
        case("a latent smaller than a head", 2, 2, (3, 4), (6, 2, 3, 5)),
        larger(case("float32", *small, causal=True, dtype=torch.float32), rotary_key=100.0),
        Case("transposed tensors", transposed(_arguments(rng, *small))),
        case("no tokens", 2, 2, (0, 3), (3, 2, 4, 2)),
    ]


def _by_chance(draw: Draw) -> Case:
    new, past = draw.one_of(2, 1, 3), draw.one_of(0, 1, 4)
    widths = draw.one_of(3, 1, 6), draw.one_of(2, 4), draw.one_of(4, 2, 7), draw.one_of(5, 1, 3)
    sizes = draw.one_of(1, 2), draw.one_of(2, 1, 3), (new, new + past), widths
    options = {"causal": True} if draw.one_of(True, False) else {}
    return Case("sizes by chance", _arguments(draw.numbers, *sizes) | options, any_dtype(draw))


def _rotary_counts(run: Run, case: Case) -> Problem | None:
    turned = case.arguments["rotary_key"][:, ::-1].copy()
    before, after = run.value(case), run.value(case, rotary_key=turned)
    if np.abs(after - before).max() > run.expected(case)[1]:
        return None
    return Problem("another output when the rotary keys are in reverse order", "the same output")


def _own_matrices(run: Run, case: Case) -> Problem | None:
    """With the heads in another order, all their outputs are in that order."""
    order = np.roll(np.arange(case.arguments["query"].shape[1]), 1)
    by_head = {"query": 1, "rotary_query": 1, "up_key": 0, "up_value": 0}
    moved = {name: case.arguments[name].take(order, axis) for name, axis in by_head.items()}
    if np.ndim(mask := case.arguments.get("mask")) == 4:
        moved["mask"] = mask[:, order]
    slack = 2 * run.expected(case)[1]
    return unchanged(
        run.value(case)[:, order], run.value(case, **moved), slack,
        "the heads come in another order", "a head's output",
    )  # fmt: skip


def _last_sees_all(run: Run, case: Case) -> Problem | None:
    """The last query of a causal call is that of a call without a mask."""
    free, causal = run.value(case, causal=False), run.value(case)
    slack = 2 * run.expected(case)[1]
    return unchanged(
        free[:, :, -1], causal[:, :, -1], slack, "the call is causal", "the last query's output"
    )


LATENT_ATTENTION = Spec(
    name="latent_attention",
    statement="latent_attention(query, rotary_query, latent, rotary_key, up_key, up_value, *, causal, mask): "
    "the heads of multi-head latent attention. A head's key is up_key latent, its value up_value latent; "
    "a score is (query . key + rotary_query . rotary_key) / sqrt(d + r), where all heads share the rotary "
    "key. query (B, H, L, d), rotary_query (B, H, L, r), latent (B, S, c), rotary_key (B, S, r), up_key "
    "(H, d, c), up_value (H, dv, c) -> (B, H, L, dv)",
    required=NAMES,
    reference=reference.latent_attention,
    baseline=mutants.LatentFormula(),
    cases=_cases,
    combine=_by_chance,
    num_drawn=5,
    checks=(
        Check(
            "the last query may attend to every key",
            "Fewer queries than keys means a cache: the mask ends at the last key.",
            _last_sees_all,
            when=lambda case: bool(case.arguments.get("causal")) and not case.is_empty,
        ),
        Check(
            "the rotary key counts",
            "The part of a score that knows positions is that of the rotary key.",
            _rotary_counts,
            when=lambda case: case.arguments["latent"].shape[1] > 1 and not case.is_empty,
        ),
        Check(
            "a head has matrices of its own",
            "With the heads in another order, their outputs are in that order.",
            _own_matrices,
            when=lambda case: case.arguments["query"].shape[1] > 1 and not case.is_empty,
        ),
    ),
    mutants=mistakes_in(mutants),
    chapter=16,
)
