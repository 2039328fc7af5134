"""The Specs of retention: with given decays, in any of its three forms, and with gates and a norm."""

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
    CAUSAL,
    NOTHING_LEFT,
    STRONG,
    is_long,
    length_of,
    new_state,
    padding_is_left_out,
    read,
    stacked,
    two_parts,
)  # fmt: skip
from ..spec import Case, Check, Run, Spec
from . import mutants

# --- With given decays ----------------------------------------------------------------------------

NAMES = ("query", "key", "value", "log_decay")


def _arguments(rng: np.random.Generator, batch, heads, length, widths) -> dict:
    shapes = ((batch, heads, length, width) for width in (widths[0], *widths))
    made = {name: rng.normal(size=shape) for name, shape in zip(NAMES, shapes, strict=False)}
    return made | {"log_decay": -rng.exponential(0.5, (batch, heads, length))}


def _state(rng: np.random.Generator, batch, heads, length, widths) -> np.ndarray:
    return rng.normal(size=(batch, heads, *widths))


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, state=False, **options) -> Case:
        arguments = _arguments(rng, *sizes) | options
        return Case(label, arguments | ({"state": _state(rng, *sizes)} if state else {}), dtype)

    small = (2, 3, 5, (4, 2))
    fixed = _arguments(rng, *small)
    fixed["log_decay"] = np.log1p(-(2.0 ** (-5.0 - np.arange(3))))[None, :, None]  # a RetNet's
    return [
        case("one token, one head", 1, 1, 1, (2, 3)),
        case("two tokens, two heads", 1, 2, 2, (3, 2)),
        case("five tokens", *small),
        case("after a state", *small, state=True),
        case("one token after a state", 2, 2, 1, (3, 4), state=True),
        Case("one decay per head, as in a RetNet", fixed),
        case("a scale of its own", *small, scale=0.3, chunk_size=2),
        case("chunks of two", *small, chunk_size=2, state=True),
        case("chunks of three", 1, 2, 7, (2, 4), chunk_size=3),
        case("chunks of one", *small, chunk_size=1),
        case("a chunk longer than the text", *small, chunk_size=9, state=True),
        case("float32", 2, 2, 6, (4, 3), state=True, dtype=torch.float32),
        Case(
            "all options at once, transposed tensors",
            transposed(_arguments(rng, *small)) | {"scale": 0.3, "state": _state(rng, *small)},
        ),
        case("no tokens", 2, 2, 0, (3, 2), state=True),
    ]


def _by_chance(draw: Draw) -> Case:
    sizes = (
        draw.one_of(1, 2), draw.one_of(2, 1, 3), draw.one_of(3, 1, 2, 6),
        (draw.one_of(3, 1, 4), draw.one_of(2, 1, 5)),
    )  # fmt: skip
    arguments = _arguments(draw.numbers, *sizes)
    if draw.one_of(False, True):
        arguments["state"] = _state(draw.numbers, *sizes)
    if draw.one_of(False, True):
        arguments["chunk_size"] = draw.one_of(2, 1, 4)
    return Case("sizes by chance", arguments, any_dtype(draw))


def _all(case: Case, logarithm: float) -> np.ndarray:
    return np.full(case.arguments["query"].shape[:3], logarithm)


def _newest(run: Run, case: Case) -> Problem | None:
    """With decays of nearly 0 an output is (q . k) v of its own token."""
    a, decays = case.arguments, {"log_decay": _all(case, NOTHING_LEFT)}
    scale = a.get("scale") or a["query"].shape[-1] ** -0.5
    own = scale * (a["query"] * a["key"]).sum(-1, keepdims=True) * a["value"]
    got = run.value(case, **decays)[:, :, : length_of(case)]
    slack = 2 * run.expected(case, **decays)[1] + case.rounding(a["query"].shape[-1])
    return compare(own, got, slack, "with decays of nearly 0, the output")


def _own_decay(run: Run, case: Case) -> Problem | None:
    """A last token whose decay is nearly 0 forgets all others; the token before it does not."""
    decays = np.zeros(case.arguments["query"].shape[:3])
    decays[:, :, -1] = NOTHING_LEFT
    expected, slack = run.expected(case, log_decay=decays)
    got = run.value(case, log_decay=decays)
    rows = slice(length_of(case) - 2, length_of(case))
    what = "where the last decay is nearly 0 and the others 1, the last two outputs"
    return compare(expected[:, :, rows], got[:, :, rows], slack, what)


def _finite(run: Run, case: Case) -> Problem | None:
    got = run.value(case, log_decay=_all(case, STRONG))
    if not np.isfinite(got).all():
        return Problem(f"finite numbers with decays of exp({STRONG:g})", "NaN or infinity")
    return None


def _own_head(run: Run, case: Case) -> Problem | None:
    """Other decays in the first head leave the others alone."""
    decays = np.broadcast_to(case.arguments["log_decay"], case.arguments["query"].shape[:3]).copy()
    decays[:, 0] -= 1.0
    before, after = run.value(case)[:, 1:], run.value(case, log_decay=decays)[:, 1:]
    slack = run.expected(case)[1] + run.expected(case, log_decay=decays)[1]
    return unchanged(
        before, after, slack, "the decays of the first head change", "another head's output"
    )


RETENTION = Spec(
    name="retention",
    statement="retention(query, key, value, log_decay, *, state, scale, chunk_size) -> (output, new state). At "
    "each token the state is multiplied by exp(log_decay), takes in key value^T, and the output is scale "
    "query^T state. state: the one before the first token, 0 by default; scale: 1 / sqrt(d) by default; "
    "chunk_size may change how it is computed, and no number. query and key (B, H, L, d), value (B, H, L, dv), "
    "log_decay (B, H, L) or broadcast to it, state (B, H, d, dv) -> (B, H, L, dv) and (B, H, d, dv)",
    required=NAMES,
    reference=stacked(reference.retention),
    baseline=mutants.RetentionFormula(),
    cases=_cases,
    combine=_by_chance,
    num_drawn=5,
    read=read,
    checks=(
        CAUSAL,
        Check(
            "strong decays stay finite",
            "No exponential of a positive number, and no quotient: mask the logarithms, then take the exponential.",
            _finite,
            when=is_long,
        ),
        Check(
            "the newest token counts in full",
            "A decay acts on what is already in the state; then the token's key and value come in.",
            _newest,
            when=lambda case: not case.is_empty and case.arguments.get("state") is None,
        ),
        Check(
            "a token's decay acts on what came before it",
            "Token i forgets the tokens before it by its own decay, not by that of its neighbor.",
            _own_decay,
            when=lambda case: is_long(case) and case.arguments.get("state") is None,
        ),
        Check(
            "a head has decays of its own",
            "Each head forgets at its own speed.",
            _own_head,
            when=lambda case: case.arguments["query"].shape[1] > 1 and not case.is_empty,
        ),
        Check(
            "the state is that of all tokens so far",
            "The old state decayed by all tokens, and each key and value by the tokens after it.",
            new_state,
            when=lambda case: not case.is_empty,
        ),
        Check(
            "a call in two parts is one call",
            "Each token reads the state that was handed in, decayed up to its own token.",
            lambda run, case: two_parts(run, case, NAMES),
            when=is_long,
        ),
    ),
    mutants=mistakes_in(mutants, of="retention"),
    chapter=16,
)  # fmt: skip

# --- With gates and a norm ------------------------------------------------------------------------

GATED = ("query", "key", "value", "gate_logits")


def _gated(rng: np.random.Generator, *sizes: Any) -> dict:
    """Queries near their own keys: the norm of an output that nearly cancels would round badly."""
    made = _arguments(rng, *sizes)
    made["query"] += 2 * made["key"]
    logits = 2 * rng.normal(size=made.pop("log_decay").shape)
    return made | {"gate_logits": logits}


def _gated_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, state=False, **options) -> Case:
        arguments = _gated(rng, *sizes) | options
        return Case(label, arguments | ({"state": _state(rng, *sizes)} if state else {}), dtype)

    small = (2, 3, 5, (4, 3))
    left = np.array([[True] * 5, [False, False, True, True, True]])
    loud = _gated(rng, 2, 2, 6, (4, 3)) | {"state": _state(rng, 2, 2, 6, (4, 3))}
    loud["gate_logits"] += 100.0 * (loud["gate_logits"] > 0.5)
    every = {"temperature": 2.0, "real": left, "scale": 0.3, "norm_eps": 0.1, "chunk_size": 2}
    return [
        case("one token, one head", 1, 1, 1, (2, 3)),
        case("two heads, three tokens", 1, 2, 3, (3, 4)),
        case("three heads", *small),
        case("a temperature of 2", *small, temperature=2.0),
        case("after a state", *small, state=True, temperature=4.0),
        case("padding on the left", *small, real=left, temperature=3.0),
        case("padding inside, after a state", *small, real=left[:, ::-1], state=True),
        case("all options at once", *small, state=True, **every),
        case("chunks of two", 1, 2, 7, (4, 3), chunk_size=2, temperature=2.0),
        Case("float32, large gates", loud, torch.float32),
        Case("transposed tensors", transposed(_gated(rng, *small))),
        case("no tokens", 2, 2, 0, (3, 2), state=True),
    ]


def _gated_by_chance(draw: Draw) -> Case:
    length = draw.one_of(3, 1, 2, 6)
    sizes = (
        draw.one_of(1, 2), draw.one_of(2, 1, 3), length, (draw.one_of(3, 2, 4), draw.one_of(3, 4, 5)),
    )  # fmt: skip
    arguments = _gated(draw.numbers, *sizes) | {"temperature": draw.one_of(16.0, 1.0, 3.0)}
    if draw.one_of(False, True):
        arguments["state"] = _state(draw.numbers, *sizes)
    if draw.one_of(False, True):
        arguments["real"] = draw.numbers.random((sizes[0], length)) < 0.7
    return Case("sizes by chance", arguments, any_dtype(draw))


def _kept_of(run: Run, case: Case, logit: float) -> np.ndarray:
    """By what each head multiplies a state of 1 in the first token, whose key is 0."""
    a = case.arguments
    one = {name: a[name][:, :, :1] for name in GATED} | {"state": np.ones_like(_ones(case))}
    one["key"], one["gate_logits"] = 0 * one["key"], np.full_like(one["gate_logits"], logit)
    if "real" in a:
        one["real"] = np.ones_like(a["real"][:, :1])
    return run.value(case, **one)[:, :, 1:]


def _ones(case: Case) -> np.ndarray:
    a = case.arguments
    return np.ones((*a["query"].shape[:2], a["query"].shape[-1], a["value"].shape[-1]))


def _slowed(run: Run, case: Case) -> Problem | None:
    """A logit of 0 keeps 0.5^(1 / temperature) of the state."""
    got = _kept_of(run, case, 0.0)
    expected = 0.5 ** (1 / case.arguments.get("temperature", 16.0)) * _ones(case)
    what = "after a token of logit 0, a state of 1"
    return compare(expected, got, case.rounding(4), what)


def _never_above_one(run: Run, case: Case) -> Problem | None:
    got = _kept_of(run, case, 8.0)
    most = 1 + case.rounding(4)
    if got.max(initial=0.0) <= most:
        return None
    return Problem(
        "a state that a token of logit 8 does not enlarge", f"a factor of {got.max():.3g}"
    )


def _padding(run: Run, case: Case) -> Problem | None:
    """Other gates, keys and values where nothing is real."""
    real = case.arguments["real"]
    changed = {
        "gate_logits": np.where(real[:, None], case.arguments["gate_logits"], -7.0),
        "key": np.where(real[:, None, :, None], case.arguments["key"], 5.0),
    }
    return padding_is_left_out(run, case, "padding has other gates and keys", **changed)


def _own_norm(run: Run, case: Case) -> Problem | None:
    """Values of the first head ten times as large: the others stay."""
    value = case.arguments["value"].copy()
    value[:, 0] *= 10.0
    before, after = run.value(case)[:, 1:], run.value(case, value=value)[:, 1:]
    slack = run.expected(case)[1] + run.expected(case, value=value)[1]
    return unchanged(
        before, after, slack, "the first head has larger values", "another head's output"
    )


GATED_RETENTION = Spec(
    name="gated_retention",
    statement="gated_retention(query, key, value, gate_logits, *, temperature, real, state, scale, norm_eps, "
    "chunk_size) -> (output, new state): retention whose decays are sigmoid(gate_logit)^(1 / temperature), "
    "16 by default, with a norm of each head: its dv features, token by token, are divided by the root of their "
    "mean square + norm_eps, 1e-5 by default. Where real is False, a token neither decays the state nor enters "
    "it. query and key (B, H, L, d), value (B, H, L, dv), gate_logits (B, H, L), real (B, L), state "
    "(B, H, d, dv) -> (B, H, L, dv) and (B, H, d, dv)",
    required=GATED,
    reference=stacked(reference.gated_retention),
    baseline=mutants.GatedFormula(),
    cases=_gated_cases,
    combine=_gated_by_chance,
    num_drawn=5,
    read=read,
    checks=(
        CAUSAL,
        Check(
            "a decay is never above 1",
            "sigmoid gives numbers between 0 and 1, and so does any root of them.",
            _never_above_one,
            when=lambda case: not case.is_empty,
        ),
        Check(
            "the temperature slows forgetting",
            "A logit of 0 keeps the sixteenth root of one half, 0.958, not one half.",
            _slowed,
            when=lambda case: not case.is_empty,
        ),
        Check(
            "padding does nothing",
            "A token that is not real leaves the state as it is: its decay is 1, its key 0.",
            _padding,
            when=lambda case: "real" in case.arguments and not case.is_empty,
        ),
        Check(
            "a head has a norm of its own",
            "The size of one head's output does not change another's.",
            _own_norm,
            when=lambda case: case.arguments["query"].shape[1] > 1 and not case.is_empty,
        ),
    ),
    mutants=mistakes_in(mutants, of="gated_retention"),
    chapter=16,
)
