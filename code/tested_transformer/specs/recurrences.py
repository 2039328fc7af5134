"""What the Specs of mixers with a state have in common: an answer is the output, and below it the state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .case import Case
from .compare import Problem, compare, unchanged
from .run import Run
from .spec import Check

# Asked for the state after the first part of a text: the run, the case, the arguments of that part, its length.
StateOf = Callable[[Run, Case, dict[str, Any], int], np.ndarray]

STRONG = -900.0  # the logarithm of a decay: exp(900) is more than float64 has
NOTHING_LEFT = -50.0  # the logarithm of a decay after which no rounding shows what was before


def read(answer: Any, arguments: dict[str, Any]) -> torch.Tensor | None:
    """The output and the state below it, (B, H, L + d, dv): one tensor to compare."""
    return None if answer is None else torch.cat(tuple(answer), 2)


def stacked(formula: Any) -> Any:
    """The reference's answer, put together in the same way."""
    return lambda **arguments: np.concatenate(formula(**arguments), 2)


def _tokens(case: Case) -> np.ndarray:
    """What is written, (B, H, L, dv) or (B, L, D): its tokens are the axis before the last."""
    return case.arguments["value" if "value" in case.arguments else "x"]


def length_of(case: Case) -> int:
    """How many tokens there are."""
    return _tokens(case).shape[-2]


def is_long(case: Case) -> bool:
    """More than one token, and nothing is empty."""
    return length_of(case) > 1 and not case.is_empty


def both_slacks(run: Run, case: Case, **changes: Any) -> float:
    """How far rounding may take two answers from each other: that of the case, and that with the changes."""
    return run.expected(case)[1] + run.expected(case, **changes)[1]


# --- Checks ---------------------------------------------------------------------------------------


def causal(hint: str, *names: str) -> Check:
    """The check that a token does not depend on later ones: the last one's arguments of these names change."""

    def test(run: Run, case: Case) -> Problem | None:
        changed = {name: case.arguments[name].copy() for name in names}
        for each in changed.values():
            each[..., -1, :] += 1.0
        last = length_of(case) - 1
        before, after = run.value(case)[..., :last, :], run.value(case, **changed)[..., :last, :]
        slack = both_slacks(run, case, **changed)
        return unchanged(before, after, slack, "the last token changes", "an earlier output")

    return Check("a token does not depend on later ones", hint, test, when=is_long)


CAUSAL = causal(
    "A query reads the keys up to its own token: in the scores, the state and the norm.", "key", "value"
)  # fmt: skip


def new_state(run: Run, case: Case) -> Problem | None:
    """The state alone, against the reference's."""
    expected, slack = run.expected(case)
    rows = slice(length_of(case), None)
    got = run.value(case)[..., rows, :]
    return compare(expected[..., rows, :], got, slack, "the state at the end")


def padding_is_left_out(run: Run, case: Case, when: str, **changed: np.ndarray) -> Problem | None:
    """With other numbers where there is padding, real tokens and the state have the same answers."""
    before, after = run.value(case), run.value(case, **changed)
    real = case.arguments["real"]
    state = np.ones((len(real), before.shape[-2] - length_of(case)), bool)
    rows = np.concatenate((real, state), 1)[..., None]  # B L+d 1
    rows = rows[:, None] if before.ndim == 4 else rows
    before, after = np.where(rows, before, 0), np.where(rows, after, 0)
    slack = both_slacks(run, case, **changed)
    return unchanged(before, after, slack, when, "a real token's output, or the state,")


# --- A call in two parts --------------------------------------------------------------------------


def of_reference(run: Run, case: Case, first: dict[str, Any], cut: int) -> np.ndarray:
    """The state that the reference has after the first part."""
    return np.asarray(run.expected(case, **first)[0][..., cut:, :], np.float64)


def of_candidate(run: Run, case: Case, first: dict[str, Any], cut: int) -> np.ndarray:
    """The state that the candidate itself returns after the first part."""
    return run.value(case, **first)[..., cut:, :]


def in_two(
    case: Case, names: tuple[str, ...], cut: int
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """The arguments of the first `cut` tokens and of the others; one that is the same for all tokens stays."""
    axis, given = _tokens(case).ndim - 2, case.arguments

    def part(tokens: slice) -> dict[str, Any]:
        places = (slice(None),) * axis + (tokens,)
        own = {n: given[n] for n in names if given.get(n) is not None}
        own = {n: a[places] if a.shape[axis] == length_of(case) else a for n, a in own.items()}
        real = given.get("real")
        return own if real is None else own | {"real": real[:, tokens]}

    return part(slice(None, cut)), part(slice(cut, None))


def two_parts(
    run: Run, case: Case, names: tuple[str, ...], *, state: StateOf = of_reference, cut: int = 0,
    with_itself: bool = False,
) -> Problem | None:  # fmt: skip
    """The second part, after a state of the first: what one call for both returns, the reference's or its own.

    `cut` is the middle by default.
    """
    cut = cut or length_of(case) // 2
    first, second = in_two(case, names, cut)
    second["state"] = state(run, case, first, cut)
    whole = run.value(case) if with_itself else run.expected(case)[0]
    slack = both_slacks(run, case, **second) * (1 if state is of_reference else 2)
    what = "the second part, after the state of the first,"
    return compare(whole[..., cut:, :], run.value(case, **second), slack, what)
