"""A voice for ten digits, from sums of sines and bursts of noise (chapter 14).

A vowel is a sum of harmonics of the voice's pitch; which of them are loud is set by three resonances of
the vocal tract, the formants. "s" and "f" are noise around a frequency. A word is a row of such sounds, and
between two of them the formants glide. It is plain on purpose.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

RATE = 16_000  # samples per second
STEP = 80  # samples: the loudness of the harmonics is computed every 5 ms
TOP = 4_000.0  # Hz: the voice has no harmonics above


class Sound(NamedTuple):
    """How long, where the three formants are, how loud the voice, and how loud the noise around which Hz."""

    milliseconds: int
    formants: tuple[int, int, int]
    voice: float
    noise: float = 0.0
    center: float = 1000.0


SOUNDS = {
    "ee": Sound(130, (280, 2250, 2950), 1.0),
    "i": Sound(90, (400, 1950, 2550), 1.0),
    "e": Sound(110, (540, 1800, 2480), 1.0),
    "a": Sound(110, (720, 1150, 2440), 1.0),
    "u": Sound(100, (620, 1200, 2400), 1.0),
    "o": Sound(120, (500, 850, 2400), 1.0),
    "oo": Sound(140, (310, 880, 2250), 1.0),
    "r": Sound(80, (420, 1250, 1600), 0.7),
    "w": Sound(70, (300, 650, 2200), 0.5),
    "n": Sound(90, (270, 1500, 2500), 0.35),
    "v": Sound(70, (280, 1100, 2300), 0.3, 0.05, 5000.0),
    "z": Sound(90, (280, 1500, 2500), 0.25, 0.15, 5500.0),
    "s": Sound(120, (280, 1600, 2500), 0.0, 0.30, 5800.0),
    "f": Sound(100, (280, 1100, 2300), 0.0, 0.12, 4500.0),
    "th": Sound(90, (280, 1400, 2500), 0.0, 0.08, 6500.0),
    "t": Sound(40, (280, 1700, 2600), 0.0, 0.35, 4000.0),
    "k": Sound(45, (280, 1900, 2500), 0.0, 0.30, 2000.0),
    "-": Sound(50, (280, 1500, 2500), 0.0),  # the lips or the tongue are closed
}
WORDS = ("zero one two three four five six seven eight nine").split()
PRONOUNCED = (
    "z i r o oo", "w u n", "- t oo", "th r ee", "f o r", "f a i v", "s i - k s", "s e v u n",
    "e i - t", "n a i n",
)  # fmt: skip


class Speaker(NamedTuple):
    """One voice: its pitch in Hz, its formants and its speed beside the table's, its breath."""

    pitch: float
    tract: float
    speed: float
    breath: float


def new_speaker(rng: torch.Generator) -> Speaker:
    """A voice drawn at random; a high voice tends to have high formants."""
    draws = torch.rand(4, generator=rng).tolist()
    tract = 0.85 + 0.3 * (0.7 * draws[0] + 0.3 * draws[1])
    return Speaker(90 * 2.4 ** draws[0], tract, 1.0 + 0.4 * draws[2], 0.02 * draws[3])


def glide(values: Float[Tensor, "C N"], milliseconds: int) -> Float[Tensor, "C N"]:
    """A moving average: a step becomes a ramp of so many milliseconds."""
    half = milliseconds * RATE // 2000
    width = 2 * half + 1
    padded = functional.pad(values.double(), (half, half), mode="replicate")  # C N+2half
    sums = functional.pad(padded.cumsum(1), (1, 0))
    return ((sums[:, width:] - sums[:, :-width]) / width).float()


def voiced(formants: Float[Tensor, "3 N"], pitch: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Harmonics h = 1, 2, ... of the pitch, each as loud as the formants let it pass, over the root of h."""
    phase = 2 * math.pi * (pitch / RATE).cumsum(0)  # N
    harmonics = torch.arange(1, int(TOP / float(pitch.min())) + 1)[:, None]  # H 1
    frequencies = harmonics * pitch[::STEP]  # H N/80
    loudness = torch.zeros_like(frequencies)
    for formant, gain in zip(formants[:, ::STEP], (1.0, 0.6, 0.3), strict=True):
        loudness += gain / (1 + ((frequencies - formant) / 60).square())
    loudness = functional.interpolate(loudness[None], len(pitch), mode="linear")[0]  # H N
    return (loudness / harmonics.sqrt() * (harmonics * phase).sin()).sum(0)


def noise_around(center: float, count: int, rng: torch.Generator) -> Float[Tensor, " N"]:
    """Noise whose loudest frequencies lie within a fifth of an octave or so of `center`."""
    spectrum = torch.fft.rfft(torch.randn(count, generator=rng))
    octaves = (torch.fft.rfftfreq(count, 1 / RATE).clamp(min=1) / center).log2()
    noise = torch.fft.irfft(spectrum * (-(octaves.square()) / 0.1).exp(), n=count)
    return noise / noise.square().mean().sqrt()


def spoken_digit(digit: int, speaker: Speaker, rng: torch.Generator) -> Float[Tensor, " N"]:
    """One digit by one speaker; the generator draws the noise, and how this take differs from others."""
    sounds = [SOUNDS[name] for name in PRONOUNCED[digit].split()]
    stretch = (0.9 + 0.2 * torch.rand(len(sounds), generator=rng)) / speaker.speed
    counts = [int(s.milliseconds * RATE / 1000 * f) for s, f in zip(sounds, stretch, strict=True)]
    table = torch.tensor([(*s.formants, s.voice, s.noise) for s in sounds]).T  # 5, sounds
    tracks = table.repeat_interleave(torch.tensor(counts), 1)  # 5 N
    formants = speaker.tract * glide(tracks[:3], 60)
    voice, noise = glide(tracks[3:], 20)
    falling = torch.linspace(1.1, 0.9, sum(counts)) * speaker.pitch  # as at the end of a word
    pairs = zip(sounds, counts, strict=True)
    hiss = torch.cat([noise_around(s.center * speaker.tract, n, rng) for s, n in pairs])
    breath = speaker.breath * voice * torch.randn(sum(counts), generator=rng)
    return 0.1 * (voice * voiced(formants, falling) + 2 * noise * hiss + breath)
