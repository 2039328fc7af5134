"""Exercises of chapter 14, on its pages about sound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor

from ..specs.compare import Problem, compare
from ..specs.log_mel.mutants import LogMel
from ..specs.mistakes import mistake, mistakes
from ..specs.spec import Case, Check, Run, Spec
from ..specs.whisper.spec import AUDIO_POSITIONS, AUDIO_STEM
from .ch14 import as_pair

# --- Which samples a frame covers -----------------------------------------------------------------


def _span_reference(frame: int, window: int, hop: int) -> np.ndarray:
    """By listing the samples whose distance from the center is at most half a window."""
    center, half = frame * hop, window // 2
    near = [n for n in range(center - window, center + window) if -half <= n - center < half]
    return np.array([near[0], near[-1]])


@mistake(
    "a frame that begins at its hop",
    rejected_by="frame 0 is centered on sample 0",
    cause="Frame f is centered on sample f x hop: it begins half a window earlier.",
)
def _span_not_centered(frame, window, hop):
    return frame * hop, frame * hop + window - 1


@mistake(
    "one sample too many in a frame",
    rejected_by="equals the reference",
    cause="A window of 400 samples ends with the 400th: first + 399.",
)
def _span_too_long(frame, window, hop):
    return frame * hop - window // 2, frame * hop + window // 2


@mistake(
    "frames that do not overlap",
    rejected_by="a frame later is a hop later",
    cause="The next frame begins a hop later, not a window later.",
)
def _span_by_window(frame, window, hop):
    return frame * window - window // 2, frame * window + window // 2 - 1


def _span_cases(rng: np.random.Generator) -> list[Case]:
    listed = [(0, 400, 160), (1, 400, 160), (100, 400, 160), (3, 4, 2), (2, 6, 5)]
    listed.append(
        (int(rng.integers(2, 99)), 2 * int(rng.integers(20, 60)), int(rng.integers(2, 9)))
    )
    names = ("frame", "window", "hop")
    return [Case(f"{each}", dict(zip(names, each, strict=True))) for each in listed]


def _span_of_zero(run: Run, case: Case) -> Problem | None:
    half = case.arguments["window"] // 2
    found = run.value(case, frame=0)
    return compare(np.array(-half), found[0], 0.0, "the first sample of frame 0")


def _span_later(run: Run, case: Case) -> Problem | None:
    later = run.value(case, frame=case.arguments["frame"] + 1)
    hops = np.full(2, case.arguments["hop"])
    return compare(hops, later - run.value(case), 0.0, "from a frame to the next")


FRAME_SPAN = Spec(
    name="ch14.frame_span",
    statement="frame_span(frame, window, hop): the first and the last sample that a frame covers, (first, "
    "last). Frame f covers `window` samples, an even number, half of them before sample f x hop. What lies "
    "before the audio has negative numbers",
    required=("frame", "window", "hop"),
    reference=_span_reference,
    differentiable=False,
    read=as_pair,
    cases=_span_cases,
    checks=(
        Check(
            "frame 0 is centered on sample 0",
            "Half of its window lies before the first sample.",
            _span_of_zero,
        ),
        Check(
            "a frame later is a hop later",
            "Both ends move by the hop, and windows overlap where the hop is shorter than a window.",
            _span_later,
        ),
    ),
    mutants=mistakes(_span_not_centered, _span_too_long, _span_by_window),
    chapter=14,
    points=1,
)

# --- From powers to features ----------------------------------------------------------------------


def _scale_reference(power: np.ndarray) -> np.ndarray:
    """Number by number."""
    kind, output = power.dtype.type, np.zeros_like(power)
    for place in np.ndindex(power.shape):
        output[place] = np.log10(max(power[place], kind("1e-10")))
    floor = output.max() - 8
    for place in np.ndindex(power.shape):
        output[place] = (max(output[place], floor) + 4) / 4
    return output


def log_scale(power: Tensor) -> Tensor:
    """The plain formula."""
    return LogMel().scaled(power.clamp(min=1e-10).log10())


@mistake(
    "natural logarithms of the powers",
    rejected_by="ten times the power is a quarter more",
    cause="log10, not log: ten times the power is 1 more before the division by 4.",
)
def _scale_natural(power):
    return LogMel().scaled(power.clamp(min=1e-10).log())


@mistake(
    "a floor for every frame",
    rejected_by="the quietest is 2 below the loudest",
    cause="The maximum is that of the whole spectrogram. A quiet frame stays quiet.",
)
def _scale_by_frame(power):
    logarithms = power.clamp(min=1e-10).log10()
    return (logarithms.maximum(logarithms.amax(0) - 8) + 4) / 4


@mistake(
    "no floor at all",
    rejected_by="the quietest is 2 below the loudest",
    cause="Nothing may lie more than 8 below the largest logarithm: that is 2 after the division by 4.",
)
def _scale_without_floor(power):
    return (power.clamp(min=1e-10).log10() + 4) / 4


@mistake(
    "the logarithm of zero",
    rejected_by="silence is -1.5",
    cause="log10(0) is -inf: powers below 1e-10 are raised to it first. With one loud sound the floor hides it.",
)
def _scale_of_zero(power):
    return LogMel().scaled(power.log10())


def _scale_cases(rng: np.random.Generator) -> list[Case]:

    def case(label: str, power: np.ndarray) -> Case:
        return Case(label, {"power": power})

    quiet = 10.0 ** rng.uniform(-9, -8, (4, 6))
    quiet[1, 2] = 50.0
    parts = 10.0 ** rng.uniform(-2, 3, (3, 5))
    parts[:, 3:] *= 1e-7
    return [
        case("one band, four powers", np.array([[0.0, 1e-3, 1.0, 100.0]])),
        case("silence", np.zeros((2, 3))),
        case("noise", 10.0 ** rng.uniform(-3, 2, (3, 5))),
        case("one loud sound", quiet),
        case("a quiet second half", parts),
    ]


def _scale_of_silence(run: Run, case: Case) -> Problem | None:
    value = run.value(case, power=np.zeros_like(case.arguments["power"]))
    return compare(np.full_like(value, -1.5), value, run.expected(case)[1], "silence")


def _scale_range(run: Run, case: Case) -> Problem | None:
    value = run.value(case)
    found = np.array(value.max() - value.min())
    return compare(np.array(2.0), found, 2 * run.expected(case)[1], "loudest - quietest")


def _scale_louder(run: Run, case: Case) -> Problem | None:
    louder = run.value(case, power=10 * case.arguments["power"])
    far = 4 * run.expected(case)[1]
    return compare(run.value(case) + 0.25, louder, far, "ten times the power")


LOG_SCALE = Spec(
    name="ch14.log_scale",
    statement="log_scale(power): Whisper's features from the powers in mel bands. log10 of at least 1e-10, "
    "nothing more than 8 below the largest, then (x + 4) / 4. power (M, F) -> (M, F)",
    required=("power",),
    reference=_scale_reference,
    baseline=log_scale,
    differentiable=False,
    cases=_scale_cases,
    checks=(
        Check(
            "ten times the power is a quarter more",
            "The logarithm has base 10, and all is divided by 4.",
            _scale_louder,
            when=lambda case: case.label == "noise",
        ),
        Check(
            "silence is -1.5",
            "The least power is 1e-10: (-10 + 4) / 4.",
            _scale_of_silence,
        ),
        Check(
            "the quietest is 2 below the loudest",
            "Where a power is 0 beside a loud sound, the floor is the maximum - 8.",
            _scale_range,
            when=lambda case: case.label in ("one loud sound", "one band, four powers"),
        ),
    ),
    mutants=mistakes(_scale_of_zero, _scale_without_floor, _scale_natural, _scale_by_frame),
    chapter=14,
    points=2,
)

# --- Whisper's encoder ----------------------------------------------------------------------------

EXERCISES = (
    FRAME_SPAN,
    LOG_SCALE,
    replace(AUDIO_POSITIONS, name="ch14.audio_positions", points=1),
    replace(AUDIO_STEM, name="ch14.audio_stem", points=2),
)
