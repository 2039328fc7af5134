"""The Spec of the delta rule: without decay, with one per head and token, with one per feature."""

from __future__ import annotations

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
    read,
    stacked,
    two_parts,
)  # fmt: skip
from ..spec import Case, Check, Run, Spec
from . import mutants

NAMES = ("query", "key", "value", "beta")


def _alone(case: Case) -> bool:
    return case.arguments.get("state") is None and not case.is_empty


def _decays(case: Case) -> bool:
    return case.arguments.get("log_decay") is not None and not case.is_empty


def _arguments(rng: np.random.Generator, batch, heads, length, widths, decays="") -> dict:
    """Keys of norms from 0.5 to 1, so that nothing grows; decays: "", "head", "heads" (fixed) or "channel"."""
    d, dv = widths
    key = rng.normal(size=(batch, heads, length, d))
    key *= rng.uniform(0.5, 1.0, key.shape[:3])[..., None] / np.linalg.norm(
        key, axis=-1, keepdims=True
    )
    made = {
        "query": rng.normal(size=(batch, heads, length, d)),
        "key": key,
        "value": rng.normal(size=(batch, heads, length, dv)),
        "beta": rng.uniform(0.1, 1.0, (batch, heads, length)),
    }
    shapes = {"head": (batch, heads, length), "heads": (1, heads, 1), "channel": key.shape}
    if decays:
        made["log_decay"] = -rng.exponential(0.5, shapes[decays])
    return made


def _state(rng: np.random.Generator, batch, heads, length, widths, decays="") -> np.ndarray:
    return rng.normal(size=(batch, heads, *widths))


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64, state=False, **options) -> Case:
        arguments = _arguments(rng, *sizes) | options
        return Case(label, arguments | ({"state": _state(rng, *sizes)} if state else {}), dtype)

    small = (2, 3, 5, (4, 2))
    every = _arguments(rng, *small, "head")
    return [
        case("one token, one head", 1, 1, 1, (2, 3)),
        case("two tokens", 1, 2, 2, (3, 2)),
        case("five tokens", *small),
        case("with a decay per head and token", *small, "head"),
        case("with a decay per feature", *small, "channel"),
        case("a fixed decay per head", *small, "heads"),
        case("after a state", *small, "head", state=True),
        case("per feature, after a state", *small, "channel", state=True),
        case("one token after a state", 2, 2, 1, (3, 4), "head", state=True),
        case("a scale of its own, after a state", *small, "head", scale=0.3, state=True),
        case("chunks of two", *small, "head", chunk_size=2, state=True),
        case(
            "chunks of three, a scale of its own",
            1,
            2,
            7,
            (2, 4),
            "channel",
            chunk_size=3,
            scale=0.3,
        ),
        case("chunks of one", *small, chunk_size=1),
        case("a chunk longer than the text", *small, "head", chunk_size=9, state=True),
        case("float32", 2, 2, 6, (4, 3), "head", state=True, dtype=torch.float32),
        Case(
            "steps of up to 2, transposed tensors", transposed(every | {"beta": 2 * every["beta"]})
        ),
        case("no tokens", 2, 2, 0, (3, 2), "head", state=True),
        case("one token per feature, after a state", 1, 2, 1, (3, 4), "channel", state=True),
    ]


def _by_chance(draw: Draw) -> Case:
    sizes = (
        draw.one_of(1, 2), draw.one_of(2, 1, 3), draw.one_of(3, 1, 2, 6),
        (draw.one_of(3, 2, 4), draw.one_of(2, 1, 5)), draw.one_of("", "head", "channel"),
    )  # fmt: skip
    arguments = _arguments(draw.numbers, *sizes)
    if draw.one_of(False, True):
        arguments["state"] = _state(draw.numbers, *sizes)
    if draw.one_of(False, True):
        arguments["chunk_size"] = draw.one_of(2, 1, 4)
    return Case("sizes by chance", arguments, any_dtype(draw))


# --- Checks ---------------------------------------------------------------------------------------


def _without_decay(case: Case) -> dict[str, np.ndarray]:
    """Decays of 1, where the case has decays."""
    return {"log_decay": 0 * case.arguments["log_decay"]} if _decays(case) else {}


def _outputs(run: Run, case: Case, **changes: np.ndarray) -> tuple[np.ndarray, float]:
    """The outputs, and how far rounding may take them."""
    return run.value(case, **changes)[:, :, : length_of(case)], run.expected(case, **changes)[1]


def _unit_key(case: Case) -> np.ndarray:
    """The same key of norm 1 in all tokens."""
    key = np.zeros_like(case.arguments["key"])
    key[..., 0], key[..., -1] = (0.6, 0.8) if key.shape[-1] > 1 else (1.0, 1.0)
    return key


def _scale(case: Case) -> float:
    scale = case.arguments.get("scale")
    return case.arguments["query"].shape[-1] ** -0.5 if scale is None else scale


def _rewritten(run: Run, case: Case) -> Problem | None:
    """One key of norm 1 in all tokens, beta 1: each of the first two reads its own value."""
    key, value = _unit_key(case), case.arguments["value"][:, :, :2]
    changes = {"query": key, "key": key, "beta": np.ones_like(case.arguments["beta"])}
    got, slack = _outputs(run, case, **changes, **_without_decay(case))
    what = "where two tokens write under one key, with a beta of 1, their outputs"
    return compare(_scale(case) * value, got[:, :, :2], slack, what)


def _other_key(run: Run, case: Case) -> Problem | None:
    """Two orthogonal keys: what the first token wrote stays, whatever the others write."""
    key = np.zeros_like(case.arguments["key"])
    key[:, :, 0, 0] = 1.0
    key[:, :, 1:, 1] = 1.0
    query = np.zeros_like(key)
    query[..., 0] = 1.0
    changes = {"query": query, "key": key, "beta": np.ones_like(case.arguments["beta"])}
    got, slack = _outputs(run, case, **changes, **_without_decay(case))
    first = case.arguments["value"][:, :, :1] * _scale(case)
    what = (
        "where the later tokens have a key orthogonal to the first, what is read by the first key"
    )
    return compare(np.broadcast_to(first, got.shape), got, slack, what)


def _writes_nothing(run: Run, case: Case) -> Problem | None:
    """A last token with a beta of 0: the state is that of the call without it."""
    last, changes = length_of(case) - 1, _without_decay(case)
    beta = case.arguments["beta"].copy()
    beta[:, :, last] = 0.0
    shorter = {name: case.arguments[name][:, :, :last] for name in NAMES}
    if _decays(case):
        shape = case.arguments["query"].shape[: changes["log_decay"].ndim]
        changes["log_decay"] = np.zeros(shape)
        shorter["log_decay"] = changes["log_decay"][:, :, :last]
    before = run.value(case, **shorter)[:, :, last:]
    after = run.value(case, beta=beta, **changes)[:, :, last + 1 :]
    slack = run.expected(case, **shorter)[1] + run.expected(case, beta=beta, **changes)[1]
    when = "a token with a beta of 0 is added, and nothing decays"
    return unchanged(before, after, slack, when, "the state")


def _share(run: Run, case: Case) -> Problem | None:
    """One key of norm 1, and a beta of a half: the first token's value comes back by half."""
    key, beta = _unit_key(case), np.full_like(case.arguments["beta"], 0.5)
    changes = {"query": key, "key": key, "beta": beta}
    got, slack = _outputs(run, case, **changes, **_without_decay(case))
    expected = 0.5 * _scale(case) * case.arguments["value"][:, :, :1]
    return compare(expected, got[:, :, :1], slack, "with a beta of one half, the first output")


def _forgets_first(run: Run, case: Case) -> Problem | None:
    """One token whose decay is nearly 0, after a state of 1: what remains is what it writes on an empty one."""
    first = {name: case.arguments[name][:, :, :1] for name in NAMES}
    first["key"] = _unit_key(case)[:, :, :1]
    k, v = first["key"][:, :, 0, :, None], first["value"][:, :, 0, None]
    first["log_decay"] = np.full(
        first["query"].shape[: case.arguments["log_decay"].ndim], NOTHING_LEFT
    )
    first["state"] = np.ones((*k.shape[:3], v.shape[-1]))
    expected = first["beta"][:, :, 0, None, None] * k * v
    got = run.value(case, **first)[:, :, 1:]
    slack = 2 * run.expected(case, **first)[1] + case.rounding(k.shape[2])
    return compare(
        expected, got, slack, "after a state of 1 and a token whose decay is nearly 0, the state"
    )


def _reads_new_state(run: Run, case: Case) -> Problem | None:
    """The last output is scale x query^T times the state that the candidate itself returns."""
    last, got = length_of(case) - 1, run.value(case)
    query, state = case.arguments["query"][:, :, last, None], got[:, :, last + 1 :]
    expected = _scale(case) * query @ state
    slack = run.expected(case)[1] * (1 + np.abs(query).sum(-1).max())
    what = "the last output, which is scale x query^T state,"
    return compare(expected, got[:, :, last, None], slack, what)


def _third_token(run: Run, case: Case) -> Problem | None:
    """Nearly equal keys and a beta of 1: every correction is corrected by those after it."""
    key = 0.8 * _unit_key(case) + 0.2 * case.arguments["key"]
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    changes = {"key": key, "beta": np.ones_like(case.arguments["beta"]), **_without_decay(case)}
    expected, slack = run.expected(case, **changes)
    got, _ = _outputs(run, case, **changes)
    rows = slice(2, length_of(case))
    return compare(
        expected[:, :, rows], got[:, :, rows], slack, "from the third token on, the outputs"
    )


def _finite(run: Run, case: Case) -> Problem | None:
    got = run.value(case, log_decay=np.full_like(case.arguments["log_decay"], STRONG))
    if not np.isfinite(got).all():
        return Problem(f"finite numbers with decays of exp({STRONG:g})", "NaN or infinity")
    return None


def _channels(run: Run, case: Case) -> Problem | None:
    """The first feature forgets all at once, the others nothing: only its row of a state of 1 is gone."""
    a = case.arguments
    decays = np.zeros_like(a["log_decay"])
    decays[..., 0] = NOTHING_LEFT
    state = np.ones((*a["query"].shape[:2], a["query"].shape[-1], a["value"].shape[-1]))
    changes = {"log_decay": decays, "beta": np.zeros_like(a["beta"]), "state": state}
    expected = state.copy()
    expected[:, :, 0] = 0.0
    got = run.value(case, **changes)[:, :, length_of(case) :]
    slack = run.expected(case, **changes)[1] + case.rounding(2)
    return compare(expected, got, slack, "where only the first feature forgets, a state of 1")


DELTA_RULE = Spec(
    name="delta_rule",
    statement="delta_rule(query, key, value, beta, log_decay=None, *, state, scale, chunk_size) -> (output, new "
    "state). At each token the state is multiplied by exp(log_decay), then takes in key (beta (value - key^T "
    "state))^T, and the output is scale query^T state. log_decay: none, one per head and token (B, H, L), or "
    "broadcast to it, or one per feature of the key (B, H, L, d). Keys are not normalized. state: the one before "
    "the first token, 0 by default; scale: 1 / sqrt(d) by default; chunk_size may change how it is computed, and "
    "no number. query and key (B, H, L, d), value (B, H, L, dv), beta (B, H, L), state (B, H, d, dv) -> "
    "(B, H, L, dv) and (B, H, d, dv)",
    required=NAMES,
    reference=stacked(reference.delta_rule),
    baseline=mutants.DeltaFormula(),
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
            when=lambda case: _decays(case) and is_long(case),
        ),
        Check(
            "the output is the scaled query's reading of the new state",
            "scale x query^T state, with the state after the token, and one scale.",
            _reads_new_state,
            when=_alone,
        ),
        Check(
            "a key written again has its new value",
            "The state writes the difference between the value and what it already returns for the key, whose norm "
            "stays as it is.",
            _rewritten,
            when=lambda case: _alone(case),
        ),
        Check(
            "another key keeps its value",
            "Only what is stored under this key is erased: k k^T S, not S.",
            _other_key,
            when=lambda case: (
                _alone(case) and is_long(case) and case.arguments["key"].shape[-1] > 1
            ),
        ),
        Check(
            "a beta of 0 writes nothing",
            "beta multiplies the whole difference, what is erased and what is written.",
            _writes_nothing,
            when=is_long,
        ),
        Check(
            "beta is the written share of the difference",
            "A beta of one half writes one half of the difference.",
            _share,
            when=_alone,
        ),
        Check(
            "each channel has a decay of its own",
            "A decay of shape (B, H, L, d) multiplies the rows of the state, each by its own.",
            _channels,
            when=lambda case: (
                _decays(case)
                and case.arguments["log_decay"].ndim == 4
                and case.arguments["log_decay"].shape[-1] > 1
            ),
        ),
        Check(
            "the state decays before it is looked up",
            "Forget, look up, write: what is forgotten need not be erased, and what is new is not decayed.",
            _forgets_first,
            when=_decays,
        ),
        Check(
            "equals the recurrence from the third token on",
            "The changes of a chunk depend on each other: solve the triangular system, all orders of it.",
            _third_token,
            when=lambda case: length_of(case) > 2 and _alone(case),
        ),
        Check(
            "the state is that of all tokens so far",
            "Each change stands under its key as it was given, decayed by the tokens after it.",
            new_state,
            when=_alone,
        ),
        Check(
            "a call in two parts is one call",
            "Each token subtracts what the state that was handed in returns, decayed up to its own token.",
            lambda run, case: two_parts(run, case, (*NAMES, "log_decay")),
            when=is_long,
        ),
    ),
    mutants=mistakes_in(mutants),
    chapter=20,
)
