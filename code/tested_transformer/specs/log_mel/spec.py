"""The Spec of Whisper's front end: from samples to a log-mel spectrogram."""

from __future__ import annotations

import numpy as np
import torch

from ... import reference
from ..checks import stays, varied
from ..compare import Problem, compare
from ..mistakes import mistakes_in
from ..spec import Case, Check, Run, Spec
from . import mutants
from .mutants import LogMel

RATE, HOP = 16_000, 160
SILENT = -1.5  # (log10(1e-10) + 4) / 4


def _cases(rng: np.random.Generator) -> list[Case]:

    def case(label, audio, length, dtype=torch.float64, **options) -> Case:
        arguments = {"audio": audio, "rate": RATE, "length": length, **options}
        return Case(label, arguments, dtype)

    def noise(count: int, loud: float = 0.1) -> np.ndarray:
        return loud * rng.normal(size=count)

    tone = 0.5 * np.sin(2 * np.pi * 440 / RATE * np.arange(340))
    click = np.zeros(960)
    click[-20:] = (-1.0) ** np.arange(20)
    return [
        case("noise, three frames", noise(480), 480),
        case("silence", np.zeros(480), 480),
        case("a tone that ends", tone, 800),
        case("noise that is trimmed", noise(900), 640),
        case("a click at the end", click, 960),
        case("something loud after the end", np.append(noise(480, 1e-6), noise(700, 10.0)), 480),
        case("almost silent", noise(500, 1e-7), 640),
        case("noise that ends between two frames", noise(570), 1000),
        case("seven bands", noise(490), 490, num_mels=7),
        case("128 bands", noise(320), 320, num_mels=128),
        case("float32", noise(800), 800, torch.float32),
        case("a tone that ends, float32", tone, 480, torch.float32),
    ]


def _silent(run: Run, case: Case) -> Problem | None:
    value = run.value(case)
    return compare(np.full_like(value, SILENT), value, run.expected(case)[1], "silence")


def _padding(run: Run, case: Case) -> Problem | None:
    audio, length = case.arguments["audio"], case.arguments["length"]
    longer = varied(case, "padded", audio=np.pad(audio, (0, length - len(audio))))
    return stays(run, case, longer, "silence is appended")


def _trimmed(run: Run, case: Case) -> Problem | None:
    audio, length = case.arguments["audio"], case.arguments["length"]
    shorter = varied(case, "trimmed", audio=audio[:length].copy())
    return stays(run, case, shorter, "what comes after `length` samples is taken away")


def _mirrored(run: Run, case: Case) -> Problem | None:
    """Two hops of the audio itself, mirrored, before it: two frames more, and the others stay."""
    audio, length = case.arguments["audio"], case.arguments["length"]
    before = np.concatenate([audio[2 * HOP : 0 : -1], audio[:length]])
    longer = varied(case, "mirrored", audio=before, length=length + 2 * HOP)
    far = run.expected(case)[1] + run.expected(longer)[1]
    return compare(run.value(case), run.value(longer)[:, 2:], far, "frames after a mirror image")


def _range(run: Run, case: Case) -> Problem | None:
    """Silence and a click: the quietest is 8 in the logarithm, 2 in the answer, below the loudest."""
    value = run.value(case)
    found = np.array(value.max() - value.min())
    return compare(np.array(2.0), found, 2 * run.expected(case)[1], "loudest - quietest")


def _louder(run: Run, case: Case) -> Problem | None:
    louder = varied(case, "louder", audio=10 * case.arguments["audio"])
    far = run.expected(case)[1] + run.expected(louder)[1]
    return compare(run.value(case) + 0.5, run.value(louder), far, "ten times as loud")


def _is_noise(case: Case) -> bool:
    """Loud enough everywhere that nothing is clamped."""
    audio, length = case.arguments["audio"], case.arguments["length"]
    return len(audio) == length and np.abs(audio).mean() > 0.01


LOG_MEL = Spec(
    name="log_mel",
    statement="""log_mel(audio, rate, *, num_mels=80, length=480000): Whisper's log-mel spectrogram of one
channel at 16,000 samples a second. The audio is padded with zeros or trimmed to `length` samples. Windows
of 400 samples, one every 160, are centered on their sample, the borders mirrored, under a periodic Hann
window; |rfft|^2 of all but the last; mel bands from 0 to 8000 Hz by Slaney's scale and norm; log10 of at
least 1e-10; at least the maximum - 8; (x + 4) / 4. audio (N) -> (num_mels, length // 160).""",
    required=("audio", "rate"),
    reference=reference.log_mel,
    baseline=LogMel(),
    differentiable=False,  # the model begins behind it
    cases=_cases,
    checks=(
        Check(
            "silence is not zero",
            "The logarithm of silence is that of the least power, 1e-10: all is (-10 + 4) / 4 = -1.5.",
            _silent,
            when=lambda case: not case.arguments["audio"].any(),
        ),
        Check(
            "padding is silence",
            "The audio is padded, not the features: zeros that are appended by hand change nothing.",
            _padding,
            when=lambda case: len(case.arguments["audio"]) < case.arguments["length"],
        ),
        Check(
            "what lies behind the end is gone",
            "The audio is trimmed, not the features: a later sound reaches no frame and no maximum.",
            _trimmed,
            when=lambda case: len(case.arguments["audio"]) > case.arguments["length"],
        ),
        Check(
            "the borders are mirrored",
            "The first window is centered on the first sample: its left half is the audio, reflected.",
            _mirrored,
            when=lambda case: _is_noise(case) and case.arguments["length"] > 2 * HOP,
        ),
        Check(
            "the dropped frame does not count",
            "The last window is dropped before the maximum is taken: the loudest frame is one that stays.",
            _range,
            when=lambda case: case.arguments["audio"].max() == 1.0,
        ),
        Check(
            "ten times as loud is half a unit more",
            "The power is 100 times as large, its log10 is 2 larger, and that is divided by 4.",
            _louder,
            when=_is_noise,
        ),
    ),
    mutants=mistakes_in(mutants),
    chapter=14,
)
