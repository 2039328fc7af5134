"""The Specs of how Whisper's encoder begins: its sinusoids, and its two convolutions."""

from __future__ import annotations

import math

import numpy as np
import torch

from ... import reference
from ..checks import transposed
from ..compare import Problem, compare
from ..draw import Draw
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants
from .mutants import Sinusoids, Stem

# --- Positions ------------------------------------------------------------------------------------


def _position_cases(rng: np.random.Generator) -> list[Case]:
    sizes = [(3, 4), (1, 6), (5, 8), (120, 12), (2, 64)]
    sizes.append((int(rng.integers(2, 9)), 2 * int(rng.integers(3, 9))))
    names = ("length", "d_model")
    return [Case(f"{n} positions, D = {d}", dict(zip(names, (n, d), strict=True)), torch.float32)
            for n, d in sizes]  # fmt: skip


def _origin(run: Run, case: Case) -> Problem | None:
    wanted = np.repeat([0.0, 1.0], case.arguments["d_model"] // 2)
    return compare(wanted, run.value(case)[0], run.expected(case)[1], "position 0")


def _slowest(run: Run, case: Case) -> Problem | None:
    """In the last column of the sines."""
    length, half = case.arguments["length"], case.arguments["d_model"] // 2
    wanted = np.array([math.sin(pos / 10_000) for pos in range(length)])
    return compare(wanted, run.value(case)[:, half - 1], run.expected(case)[1], "the slowest sine")


AUDIO_POSITIONS = Spec(
    name="audio_positions",
    statement="""audio_positions(length, d_model): the sinusoids of Whisper's encoder, float32. Column i of
D/2 is sin(pos / 10000^(i / (D/2 - 1))), column D/2 + i its cosine; D even, at least 4 -> (length, D).""",
    required=("length", "d_model"),
    reference=reference.audio_positions,
    baseline=Sinusoids(),
    differentiable=False,  # of whole numbers
    cases=_position_cases,
    checks=(
        Check(
            "position 0 is zeros, then ones",
            "At position 0 all angles are 0. All sines stand first, then all cosines.",
            _origin,
        ),
        Check(
            "the slowest pair turns by 1/10,000",
            "i runs from 0 to D/2 - 1 and is divided by D/2 - 1: the last exponent is 1.",
            _slowest,
        ),
    ),
    mutants=mistakes_in(mutants, of="audio_positions"),
    chapter=14,
)

# --- The two convolutions -------------------------------------------------------------------------


def _arguments(rng: np.random.Generator, batch: int, mels: int, frames: int, width: int) -> dict:
    shapes = {
        "features": (batch, mels, frames), "first_weight": (width, mels, 3), "first_bias": (width,),
        "second_weight": (width, width, 3), "second_bias": (width,),
        "positions": (frames // 2, width),
    }  # fmt: skip
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def _stem_cases(rng: np.random.Generator) -> list[Case]:

    def case(label, *sizes, dtype=torch.float64) -> Case:
        return Case(label, _arguments(rng, *sizes), dtype)

    return [
        case("four states", 1, 2, 8, 3),
        case("a batch", 2, 3, 12, 5),
        case("one state", 1, 2, 2, 4),
        case("as many states as features", 2, 3, 8, 4),
        case("float32", 2, 4, 10, 6, dtype=torch.float32),
        Case("transposed tensors", transposed(_arguments(rng, 2, 3, 6, 5))),
        case("no recordings", 0, 3, 6, 5),
    ]


def _stem_by_chance(draw: Draw) -> Case:
    sizes = draw.one_of(1, 3), draw.one_of(2, 1, 5), draw.one_of(6, 14), draw.one_of(3, 2, 7)
    return Case("sizes by chance", _arguments(draw.numbers, *sizes))


def _five_frames(run: Run, case: Case) -> Problem | None:
    """Change one frame after the other: the states that hear it change, and no others."""
    features, before = case.arguments["features"], run.value(case)
    for frame in range(features.shape[2]):
        changed = features.copy()
        changed[:, :, frame] += 1.0
        after = run.value(case, features=changed)
        moved = set((np.abs(after - before).max((0, 2)) > 0).nonzero()[0].tolist())
        hearing = {s for s in range(before.shape[1]) if abs(2 * s - frame) <= 2}
        if moved != hearing:
            return Problem(f"frame {frame} changes states {sorted(hearing)}", f"{sorted(moved)}")
    return None


def _positions_added(run: Run, case: Case) -> Problem | None:
    positions = case.arguments["positions"]
    without = run.value(case, positions=np.zeros_like(positions))
    return compare(without + positions, run.value(case), 4 * run.expected(case)[1], "the states")


def _wide_and_full(case: Case) -> bool:
    return not case.is_empty and case.dtype == torch.float64


AUDIO_STEM = Spec(
    name="audio_stem",
    statement="""audio_stem(features, first_weight, first_bias, second_weight, second_bias, positions): how
Whisper's encoder begins. Two convolutions over time with kernels of 3 frames and a zero at each end, the
exact GELU after each, the second with stride 2; then every state has its position added. features (B, M, F),
first_weight (D, M, 3), second_weight (D, D, 3), biases (D), positions (F/2, D), F even -> (B, F/2, D).""",
    required=(
        "features", "first_weight", "first_bias", "second_weight", "second_bias", "positions",
    ),
    reference=reference.audio_stem,
    baseline=Stem(),
    cases=_stem_cases,
    combine=_stem_by_chance,
    num_drawn=3,
    checks=(
        Check(
            "a state hears five frames",
            "State s hears the frames 2s - 2 to 2s + 2: three by the second convolution, one more on each side.",
            _five_frames,
            when=_wide_and_full,
        ),
        Check(
            "every state has its position",
            "The positions are added once, after the convolutions, to states in their order.",
            _positions_added,
            when=_wide_and_full,
        ),
    ),
    mutants=mistakes_in(mutants, of="audio_stem"),
    chapter=14,
)  # fmt: skip
