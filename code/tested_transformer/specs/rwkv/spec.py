"""The Spec of RWKV-4's WKV: a mean of all values so far, weighted by keys that fade."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ... import reference
from ..checks import any_dtype, transposed
from ..compare import Problem, compare, unchanged
from ..draw import Draw
from ..mistakes import mistakes_in
from ..recurrences import (
    NOTHING_LEFT,
    causal,
    is_long,
    length_of,
    padding_is_left_out,
    two_parts,
)  # fmt: skip
from ..spec import Case, Check, Run, Spec
from . import mutants

NAMES = ("key", "value", "log_decay", "bonus")
LARGE = 800.0  # exp(800) is more than float64 has


def read(answer: Any, arguments: dict[str, Any]) -> torch.Tensor | None:
    """The output, and below it the state as a mean and a logarithm, which do not depend on the maximum."""
    if answer is None:
        return None
    output, state = answer
    numerator, denominator, maximum = state.unbind(1)
    mean_and_log = torch.stack([numerator / denominator, maximum + denominator.log()], 1)
    return torch.cat([output, mean_and_log], 1)


def _expected(**arguments: Any) -> np.ndarray:
    output, state = reference.wkv(**arguments)
    numerator, denominator, maximum = state.swapaxes(0, 1)
    rows = np.stack((numerator / denominator, maximum + np.log(denominator)), 1)
    return np.concatenate((output, rows), 1)


def _arguments(rng: np.random.Generator, batch, length, features) -> dict[str, Any]:
    return {
        "key": 2 * rng.normal(size=(batch, length, features)),
        "value": rng.normal(size=(batch, length, features)),
        "log_decay": -0.05 - rng.exponential(0.5, features),
        "bonus": rng.normal(size=features),
    }


def _state(rng: np.random.Generator, batch, length, features) -> np.ndarray:
    """Sums over some tokens: the denominator is positive."""
    count = 0.5 + rng.random((batch, features))
    return np.stack((rng.normal(size=count.shape), count, rng.normal(size=count.shape)), 1)


LEFT = np.array([[True] * 6, [False, False, True, True, True, True]])
INSIDE = np.array([[True, True, False, False, True, True], [True, False, True, True, True, False]])


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, state=False, **options) -> Case:
        given = _arguments(rng, *sizes) | options
        return Case(label, given | ({"state": _state(rng, *sizes)} if state else {}), dtype)

    small = (2, 6, 3)
    return [
        case("one token", 1, 1, 1),
        case("two tokens", 1, 2, 1),
        case("six tokens", *small),
        case("after a state", *small, state=True),
        case("one token after a state", 2, 1, 3, state=True),
        case("padding on the left", *small, real=LEFT),
        case("padding on the right, after a state", *small, real=LEFT[:, ::-1], state=True),
        case("padding inside", *small, real=INSIDE, chunk_size=2),
        case("chunks of two", *small, chunk_size=2, state=True),
        case("chunks that do not divide the text", 1, 7, 2, chunk_size=3),
        case("float32", 2, 5, 3, state=True, dtype=torch.float32),
        Case(
            "all options at once, transposed tensors",
            transposed(_arguments(rng, *small))
            | {"real": LEFT[::-1] & [[True], [False]], "state": _state(rng, *small)},
        ),
        case("no tokens", 2, 0, 3, state=True),
    ]


def _by_chance(draw: Draw) -> Case:
    sizes = (draw.one_of(2, 1), draw.one_of(5, 1, 8), draw.one_of(3, 1, 2))
    given = _arguments(draw.numbers, *sizes)
    if draw.one_of(False, True):
        given["state"] = _state(draw.numbers, *sizes)
        if draw.one_of(False, True):
            given["real"] = draw.numbers.random(sizes[:2]) < 0.7
    return Case("sizes by chance", given, any_dtype(draw))


def _has_padding(case: Case) -> bool:
    real = case.arguments.get("real")
    return real is not None and not case.is_empty and bool((~real).any())


def _finite(run: Run, case: Case) -> Problem | None:
    """All keys larger: finite, and the same outputs, for a constant changes no weight of a softmax."""
    key = case.arguments["key"] + LARGE
    got = run.value(case, key=key)[:, : length_of(case)]
    if not np.isfinite(got).all():
        return Problem(f"finite numbers with keys of {LARGE:g}", "NaN or infinity")
    return None


def _constant(run: Run, case: Case) -> Problem | None:
    """Values that are all 3: so is every mean."""
    changed = {"value": np.full_like(case.arguments["value"], 3.0)}
    if "state" in case.arguments:
        changed["state"] = case.arguments["state"].copy()
        changed["state"][:, 0] = 3.0 * changed["state"][:, 1]
    got = run.value(case, **changed)[:, : length_of(case)]
    slack = run.expected(case, **changed)[1]
    return compare(np.full_like(got, 3.0), got, slack, "where all values are 3, the output")


def _before(run: Run, case: Case) -> Problem | None:
    """Keys of 0, no bonus, decays of nearly 0: the mean of a token's value and of the one before it."""
    a = case.arguments
    changed = {
        "key": np.zeros_like(a["key"]), "bonus": np.zeros_like(a["bonus"]),
        "log_decay": np.full_like(a["log_decay"], NOTHING_LEFT),
    }  # fmt: skip
    got = run.value(case, **changed)[:, 1 : length_of(case)]
    value = a["value"]
    expected = (value[:, 1:] + value[:, :-1]) / 2
    slack = run.expected(case, **changed)[1] + case.rounding(4)
    return compare(expected, got, slack, "with decays of nearly 0 and keys of 0, the output")


def _bonus(run: Run, case: Case) -> Problem | None:
    """Another bonus: the state stays."""
    bonus, length = case.arguments["bonus"] + 1.0, length_of(case)
    before, after = run.value(case)[:, length:], run.value(case, bonus=bonus)[:, length:]
    slack = run.expected(case)[1] + run.expected(case, bonus=bonus)[1]
    return unchanged(before, after, slack, "the bonus changes", "the state at the end")


def _fades(run: Run, case: Case) -> Problem | None:
    """With decays of nearly 0 the state at the end is the last token: its value, its key."""
    a = case.arguments
    changed = {"log_decay": np.full_like(a["log_decay"], 2 * NOTHING_LEFT)}
    expected = np.stack((a["value"][:, -1], a["key"][:, -1]), 1)
    got = run.value(case, **changed)[:, length_of(case) :]
    slack = run.expected(case, **changed)[1] + case.rounding(4)
    return compare(expected, got, slack, "with decays of nearly 0, the state")


def _padding(run: Run, case: Case) -> Problem | None:
    """Other keys and values where there is padding."""
    real = case.arguments["real"]
    changed = {n: np.where(real[..., None], case.arguments[n], 4.0) for n in ("key", "value")}
    return padding_is_left_out(run, case, "padding has other keys and values", **changed)


def _sums(run: Run, case: Case, first: dict[str, Any], cut: int) -> np.ndarray:
    """The reference's state after the first part, as sums: the answer has a mean and a logarithm."""
    return reference.wkv(**case.arrays(**first))[1].astype(np.float64)


def _plain(case: Case) -> bool:
    return not case.is_empty and "real" not in case.arguments


WKV = Spec(
    name="wkv",
    statement="wkv(key, value, log_decay, bonus, *, state, real, chunk_size) -> (output, new state). For each feature "
    "the output is a mean of the values so far: token j counts exp(key_j + (i - 1 - j) log_decay) at token i, and i "
    "itself exp(key_i + bonus). The state is numerator, denominator and maximum: what the sums are times exp(maximum), "
    "all tokens faded up to the last. Where real is False a token enters no state. chunk_size may change how it is "
    "computed, and no number. key and value (B, L, D), log_decay and bonus (D), state (B, 3, D), real (B, L) -> (B, L, "
    "D) and (B, 3, D)",
    required=NAMES,
    reference=_expected,
    baseline=mutants.WkvFormula(),
    cases=_cases,
    combine=_by_chance,
    num_drawn=5,
    read=read,
    checks=(
        causal("The mean is over the tokens so far.", "key", "value"),
        Check(
            "it is a mean of the values",
            "The numerator is divided by the sum of the weights.",
            _constant,
            when=lambda case: not case.is_empty,
        ),
        Check(
            "large keys stay finite",
            "Every exponential is of a score minus the largest score so far.",
            _finite,
            when=lambda case: not case.is_empty,
        ),
        Check(
            "the bonus is for the newest token alone",
            "The bonus counts in a token's own output; what is handed on is exp(key).",
            _bonus,
            when=lambda case: not case.is_empty,
        ),
        Check(
            "old tokens fade",
            "Between two tokens the old sums are multiplied by exp(log_decay).",
            _fades,
            when=_plain,
        ),
        Check(
            "the token before counts in full",
            "The output reads the state before it fades: fading begins with the token after the next.",
            _before,
            when=lambda case: _plain(case) and is_long(case),
        ),
        Check(
            "padding does nothing",
            "Padding leaves the state as it is: no term, and no fading.",
            _padding,
            when=_has_padding,
        ),
        Check(
            "a call in two parts is one call",
            "The second call begins with the state after the first.",
            lambda run, case: two_parts(run, case, ("key", "value"), state=_sums),
            when=lambda case: is_long(case)
            and ("real" not in case.arguments or bool(case.arguments["real"].any(1).all()))
            and ("real" not in case.arguments or "state" in case.arguments),
        ),
    ),
    mutants=mistakes_in(mutants, of="wkv"),
    chapter=20,
)  # fmt: skip
