"""The Spec of TTT-Linear: a step of gradient descent per token, in mini-batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ... import reference
from ..checks import any_dtype, transposed
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..recurrences import causal, is_long, length_of, read, stacked, two_parts
from ..spec import Case, Check, Run, Spec
from . import mutants

NAMES = ("query", "key", "value", "step_size")


def _arguments(rng: np.random.Generator, batch, heads, length, widths) -> dict[str, Any]:
    """Keys of a norm near 1, as a step that does not overshoot wants them."""
    tokens = (batch, heads, length)
    return {
        "query": rng.normal(size=(*tokens, widths[0])),
        "key": rng.normal(size=(*tokens, widths[0])) / widths[0] ** 0.5,
        "value": rng.normal(size=(*tokens, widths[1])),
        "step_size": 0.1 + 0.8 * rng.random(tokens),
    }


def _state(rng: np.random.Generator, batch, heads, length, widths) -> np.ndarray:
    return rng.normal(size=(batch, heads, *widths))


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, state=False, **options) -> Case:
        given = _arguments(rng, *sizes) | options
        return Case(label, given | ({"state": _state(rng, *sizes)} if state else {}), dtype)

    small = (2, 3, 7, (4, 2))
    return [
        case("one token, one head", 1, 1, 1, (2, 3)),
        case("two tokens", 1, 1, 2, (2, 1)),
        case("one mini-batch", *small),
        case("after a state", *small, state=True),
        case("mini-batches of one token", *small, batch_size=1, state=True),
        case("mini-batches of three tokens", *small, batch_size=3),
        case("mini-batches of two, after a state", 2, 2, 6, (3, 4), batch_size=2, state=True),
        case("float32", *small, state=True, batch_size=4, dtype=torch.float32),
        Case("transposed tensors", transposed(_arguments(rng, *small))),
        case("no tokens", 2, 2, 0, (3, 2), state=True),
    ]


def _by_chance(draw: Draw) -> Case:
    length, options = draw.one_of(
        (5, {"batch_size": 2}), (19, {}), (1, {"batch_size": 3}), (8, {"batch_size": 3})
    )
    sizes = (
        draw.one_of(1, 2), draw.one_of(2, 1, 3), length,
        (draw.one_of(3, 1, 4), draw.one_of(2, 1, 5)),
    )  # fmt: skip
    given = _arguments(draw.numbers, *sizes)
    given |= options
    if draw.one_of(False, True):
        given["state"] = _state(draw.numbers, *sizes)
    return Case("sizes by chance", given, any_dtype(draw))


def _batch(case: Case) -> int:
    return case.arguments.get("batch_size", 16)


def _own_step(run: Run, case: Case) -> Problem | None:
    """Another last value: the last output moves."""
    value = case.arguments["value"].copy()
    value[:, :, -1] += 1.0
    last = length_of(case) - 1
    moved = run.value(case, value=value)[:, :, last] - run.value(case)[:, :, last]
    slack = run.expected(case)[1] + run.expected(case, value=value)[1]
    if np.abs(moved).max() > slack:
        return None
    return Problem("a last output that depends on the last value", "one that does not")


def _no_step(run: Run, case: Case) -> Problem | None:
    """The first token has a step of 0, and then another key and value."""
    a = case.arguments
    step = a["step_size"].copy()
    step[:, :, 0] = 0.0
    changed = {n: a[n].copy() for n in ("key", "value")}
    for each in changed.values():
        each[:, :, 0] += 1.0
    before = run.value(case, step_size=step)[:, :, 1:]
    after = run.value(case, step_size=step, **changed)[:, :, 1:]
    slack = run.expected(case, step_size=step)[1]
    slack += run.expected(case, step_size=step, **changed)[1]
    return unchanged(before, after, slack, "a token of step 0 changes", "what follows")


def _stored(run: Run, case: Case) -> Problem | None:
    """One token with a key of norm 1 and a step of 1, read by its own key: its value."""
    a = case.arguments
    key = a["key"][:, :, :1]
    key = key / np.sqrt((key**2).sum(-1, keepdims=True))
    one = {
        "query": key, "key": key, "value": a["value"][:, :, :1],
        "step_size": np.ones_like(a["step_size"][:, :, :1]),
        "state": a.get("state", np.ones((*key.shape[:2], key.shape[-1], a["value"].shape[-1]))),
    }  # fmt: skip
    got = run.value(case, **one)[:, :, :1]
    slack = run.expected(case, **one)[1] + case.rounding(8) * 8
    return compare(one["value"], got, slack, "a value stored with a step of 1, and read again,")


def _order(run: Run, case: Case) -> Problem | None:
    """The first two tokens change places within their mini-batch: the state at the end stays."""
    order = np.r_[1, 0, 2 : length_of(case)]
    changed = {n: case.arguments[n][:, :, order] for n in NAMES}
    length = length_of(case)
    before, after = run.value(case)[:, :, length:], run.value(case, **changed)[:, :, length:]
    slack = run.expected(case)[1] + run.expected(case, **changed)[1]
    return unchanged(before, after, slack, "two tokens of a mini-batch change places", "the state")


def _two_parts(run: Run, case: Case) -> Problem | None:
    """Cut between two mini-batches."""
    cut = _batch(case) * max(1, length_of(case) // _batch(case) // 2)
    return two_parts(run, case, NAMES, cut=cut)


TTT_LINEAR = Spec(
    name="ttt_linear",
    statement="ttt_linear(query, key, value, step_size, *, state, batch_size) -> (output, new state). The state W is a "
    "linear model. For each token W = W - step_size k^T (k W0 - v), where W0 is W at the beginning of its mini-batch of "
    "batch_size tokens (16 by default; the last may be shorter), and the output is q W. query and key (B, H, L, d), "
    "value (B, H, L, dv), step_size (B, H, L), state (B, H, d, dv) -> (B, H, L, dv) and (B, H, d, dv)",
    required=NAMES,
    reference=stacked(reference.ttt_linear),
    baseline=mutants.TttFormula(),
    cases=_cases,
    combine=_by_chance,
    num_drawn=5,
    read=read,
    checks=(
        causal("In the dual form, too, Q K^T is masked.", "key", "value"),
        Check(
            "a token reads its own step",
            "The output is that of W after the token's step: the diagonal of the mask counts.",
            _own_step,
            when=lambda case: not case.is_empty,
        ),
        Check(
            "a full step stores the value",
            "With a key of norm 1 a step of 1 brings the error to 0: the half of the square, minus its gradient.",
            _stored,
            when=lambda case: not case.is_empty and _batch(case) == 1 and "state" in case.arguments,
        ),
        Check(
            "a step of 0 skips a token",
            "A step size belongs to the key that it writes, and to no query.",
            _no_step,
            when=is_long,
        ),
        Check(
            "errors are those of the beginning of a mini-batch",
            "Within a mini-batch all errors are taken at the same W: the order of its tokens does not matter to the sum.",
            _order,
            when=lambda case: is_long(case) and _batch(case) > 1,
        ),
        Check(
            "a call in two parts is one call",
            "Cut between two mini-batches, the second call begins with the W of the first.",
            _two_parts,
            when=lambda case: is_long(case) and length_of(case) > _batch(case),
        ),
    ),
    mutants=mistakes_in(mutants, of="ttt_linear"),
    chapter=20,
)  # fmt: skip
