"""Exercises of chapter 18's main page: the other layout of rotary positions, and positions of a padded batch."""

from __future__ import annotations

import numpy as np
import torch

from ..specs.compare import Problem, compare
from ..specs.mistakes import mistake, mistakes
from ..specs.rotary.spec import ROTARY
from ..specs.spec import Case, Check, Run, Spec

# --- Rotary positions, interleaved ----------------------------------------------------------------

INTERLEAVED = ROTARY.narrowed(
    lambda case: case.arguments.keys() == {"x", "position_ids"} and not case.is_empty
    and case.arguments["position_ids"].ndim == 1 and case.dtype in (torch.float32, torch.float64)
    and case.arguments["x"].shape[-1] % 2 == 0,
    name="ch18.rotary_interleaved",
    statement="rotary_interleaved(x, position_ids): pair i = 0 ... d/2 - 1 is features 2i and 2i + 1; (a, b) becomes "
    "(a cos t - b sin t, a sin t + b cos t) with t = position / 10000^(2i/d). x (B, H, L, d), position_ids (L)",
    mutants=[
        each for each in ROTARY.mutants
        if each.name in {
            "rotated backwards", "a rotation without its minus", "the other pairing of features",
            "rotated features not interleaved again", "two angles in a pair", "rotary position IDs ignored",
            "rotary exponent i in place of 2i",
        }
    ],
    chapter=18,
    points=2,
)  # fmt: skip

# --- Positions of a padded batch ------------------------------------------------------------------


def positions_of(real):
    """How many real tokens come before each; 0 for padding."""
    return ((real.cumsum(1) - 1) * real).clamp(min=0)


def _positions_reference(real: np.ndarray) -> np.ndarray:
    """Token by token."""
    ids = np.zeros(real.shape, dtype=np.int64)
    for b, row in enumerate(real):
        count = 0
        for s, is_real in enumerate(row):
            ids[b, s] = count if is_real else 0
            count += int(is_real)
    return ids


@mistake(
    "positions that count padding",
    rejected_by="padding does not move a token",
    symptom="A batch padded on the left generates something else than each of its sequences alone.",
    cause="arange counts columns; a position counts the real tokens before it.",
    seen="unslothai/unsloth pull request 4078",
)
def counts_padding(real):
    """The columns."""
    return torch.arange(real.shape[1]).expand(real.shape) * real


@mistake(
    "padded positions counted from 1",
    rejected_by="the first real token is at position 0",
    cause="cumsum counts the token itself: take 1 off.",
)
def counts_from_one(real):
    """The running count."""
    return real.cumsum(1) * real


@mistake(
    "the padding of the first sequence",
    rejected_by="padding does not move a token",
    cause="Every sequence has its own number of padding tokens.",
)
def first_sequence(real):
    """One shift for the batch."""
    shift = (~real[0]).cumprod(0).sum()
    return (torch.arange(real.shape[1]) - shift).clamp(min=0) * real


@mistake(
    "padding on the left alone",
    rejected_by="equals the reference",
    cause="Padding may also stand between a prompt and what follows it: count real tokens.",
)
def left_alone(real):
    """The column less the padding at the front."""
    shift = (~real).cumprod(1).sum(1, keepdim=True)
    return (torch.arange(real.shape[1]) - shift).clamp(min=0) * real


def _positions_cases(rng: np.random.Generator) -> list[Case]:
    rows = {
        "no padding": [[1, 1, 1]],
        "on the left": [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]],
        "on the left, the longest first": [[1, 1, 1, 1], [0, 0, 0, 1]],
        "on the right": [[1, 1, 0, 0], [1, 1, 1, 0]],
        "in the middle": [[0, 1, 1, 0, 0, 1, 1], [1, 1, 1, 1, 0, 0, 1]],
        "padding alone": [[0, 0], [0, 1]],
    }
    made = [
        Case(label, {"real": np.array(row, dtype=bool)})
        for label, row in rows.items()
    ]  # fmt: skip
    for n in range(3):
        made.append(Case(f"by chance {n}", {"real": rng.random((3, 6)) < 0.6}))
    return made


def _unpadded(run: Run, case: Case) -> Problem | None:
    """Two padding tokens before one sequence, one before the other."""
    real = np.ones((2, 6), dtype=bool)
    real[0, :2] = real[1, :1] = False
    wanted = np.array([[0, 0, 0, 1, 2, 3], [0, 0, 1, 2, 3, 4]])
    return compare(
        wanted, run.value(case, real=real), 0.0, "with padding on the left, the positions"
    )


def _from_zero(run: Run, case: Case) -> Problem | None:
    found = run.value(case, real=np.ones((1, 3), dtype=bool))
    return compare(np.arange(3)[None], found, 0.0, "without padding, the positions")


POSITIONS = Spec(
    name="ch18.positions_of",
    statement="positions_of(real): real (B, L) is True where a token is no padding; returns the position of each token, "
    "the number of real tokens before it, and 0 for padding. (B, L), integers",
    required=("real",),
    reference=_positions_reference,
    differentiable=False,
    cases=_positions_cases,
    checks=(
        Check(
            "the first real token is at position 0",
            "A position counts the tokens before a token, not the token itself.",
            _from_zero,
        ),
        Check(
            "padding does not move a token",
            "The tokens of a padded sequence have the positions that they have without padding.",
            _unpadded,
        ),
    ),
    mutants=mistakes(counts_padding, counts_from_one, first_sequence, left_alone),
    chapter=18,
    points=1,
)

EXERCISES = (INTERLEAVED, POSITIONS)
