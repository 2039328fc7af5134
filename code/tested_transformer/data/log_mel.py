"""Sound as Whisper reads it: overlapping windows, their spectra, mel bands, logarithms."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from ..bounds import AtLeast, PositiveInt
from ..errors import argument_error, shape_of
from ..shapes import checked

__all__ = ["audio_frames", "log_mel", "mel_filters", "pad_or_trim", "power_spectrum"]

SAMPLE_RATE = 16_000  # samples per second
WINDOW = 400  # 25 ms
HOP = 160  # 10 ms
LENGTH = 30 * SAMPLE_RATE  # samples that Whisper reads at once
NUM_BINS = WINDOW // 2 + 1  # frequencies of a window, 40 Hz apart
SILENCE = 1e-10  # the least power that is told from none
RANGE = 8.0  # of the logarithms: 80 dB below the loudest all is equally quiet

Length = Annotated[int, AtLeast(WINDOW // 2 + 1)]  # the reflection takes half a window

# --- From samples to windows ----------------------------------------------------------------------


@checked
def pad_or_trim(audio: Float[Tensor, " N"], length: PositiveInt = LENGTH) -> Float[Tensor, " T"]:
    """Append silence up to `length` samples, or drop what comes after them.

    Shapes: (N) -> (length).
    Raises: TypeError or ValueError that name the argument.
    Source: Radford et al. 2022 (Whisper), section 2.1: 30-second segments.

    >>> pad_or_trim(torch.tensor([0.5, -0.5]), 4)
    tensor([ 0.5000, -0.5000,  0.0000,  0.0000])
    """
    return functional.pad(audio[:length], (0, max(0, length - len(audio))))


@checked
def audio_frames(audio: Float[Tensor, " N"]) -> Float[Tensor, "F 400"]:
    """Windows of 25 ms, one every 10 ms, the first centered on the first sample.

    Half a window is missing at each end: it is the audio itself, reflected, without its end sample.

    Shapes: (N) -> (1 + N // 160, 400), N at least 201.
    Raises: TypeError or ValueError that name the argument.
    Source: Radford et al. 2022 (Whisper), section 2.2; torch.stft with center=True.
    """
    half = WINDOW // 2
    if len(audio) <= half:
        wanted = f"more than {half} samples, for the reflection"
        raise argument_error(ValueError, "audio", f"shape {shape_of(audio)}", wanted)
    reflected = functional.pad(audio[None], (half, half), mode="reflect")[0]  # N + 400
    return reflected.unfold(0, WINDOW, HOP)  # F 400


@checked
def power_spectrum(audio: Float[Tensor, " N"]) -> Float[Tensor, "F 201"]:
    """How much power each window has at 0, 40, 80, ... 8000 Hz.

    A window fades in and out by Hann's, sin^2(pi n / 400): periodic, so that 400 stands for 0 again.

    Shapes: (N) -> (1 + N // 160, 201).
    Raises: TypeError or ValueError that name the argument.
    Source: Radford et al. 2022 (Whisper), section 2.2.
    """
    samples = torch.arange(WINDOW, dtype=torch.float64, device=audio.device)
    fade = (math.pi * samples / WINDOW).sin().square().to(audio.dtype)  # 400
    spectrum = torch.fft.rfft(audio_frames(audio) * fade)  # F 201, complex
    return spectrum.real.square() + spectrum.imag.square()


# --- Mel bands ------------------------------------------------------------------------------------

LINEAR = 200 / 3  # Hz per mel below 1000 Hz, which are 15 mels
STEP = math.log(6.4) / 27  # above: 27 mels are a factor of 6.4


def hertz(mels: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Slaney's mel scale, the way back: linear below 1000 Hz, exponential above."""
    return torch.where(mels < 15, LINEAR * mels, 1000 * (STEP * (mels - 15)).exp())


@checked
def mel_filters(num_mels: PositiveInt = 80) -> Float[Tensor, "M 201"]:
    """Triangular bands from 0 to 8000 Hz: the weight of each of 201 frequencies in each band.

    Their corners are equally spaced in mels, by Slaney's scale: below 1000 Hz a mel has as many Hz
    everywhere, above it is a ratio. Each band begins at the peak of the one before and is divided by
    half its width in Hz, so that its area is 1. In float64.

    Shapes: a number -> (num_mels, 201).
    Raises: TypeError or ValueError that name the argument.
    Source: Slaney 1998, Auditory Toolbox; librosa.filters.mel.
    """
    top = 15 + math.log(8000 / 1000) / STEP  # 8000 Hz in mels
    corners = hertz(torch.linspace(0, top, num_mels + 2, dtype=torch.float64))  # M + 2
    low, peak, high = (corners[i : i + num_mels, None] for i in range(3))  # M 1 each
    bins = torch.linspace(0, SAMPLE_RATE / 2, NUM_BINS, dtype=torch.float64)  # 201
    rising, falling = (bins - low) / (peak - low), (high - bins) / (high - peak)  # M 201
    return rising.minimum(falling).clamp(min=0) * 2 / (high - low)


# --- Whisper's input ------------------------------------------------------------------------------


@checked(nonempty="N")
def log_mel(
    audio: Float[Tensor, " N"],
    rate: Literal[16_000],
    *,
    num_mels: PositiveInt = 80,
    length: Length = LENGTH,
) -> Float[Tensor, "M F"]:
    """The log-mel spectrogram: what Whisper's encoder gets, for one channel of audio.

    The audio is padded with silence or trimmed to `length` samples, its last window is dropped; powers
    in mel bands become logarithms, nothing lies more than 8 below the largest, and (x + 4) / 4 brings
    them near [-1, 1]. Silence is not 0: where all is silent, it is -1.5. Computed in float64, since a
    quiet band beside a loud one is a small difference of large numbers, and returned in float32 at least.

    audio: numbers in [-1, 1], `rate` per second. num_mels: 80, or 128 for large-v3.

    Shapes: (N) -> (num_mels, length // 160): (80, 3000) by default.
    Raises: TypeError or ValueError that name the argument; ValueError for audio of another rate, or
        of several channels.
    Source: Radford et al. 2022 (Whisper), section 2.2; whisper/audio.py.
    """
    samples = pad_or_trim(audio.double(), length)
    power = power_spectrum(samples)[:-1]  # F 201; one is dropped before the maximum is taken
    filters = mel_filters(num_mels).to(power)  # M 201
    logarithms = (filters @ power.T).clamp(min=SILENCE).log10()  # M F
    scaled = (logarithms.maximum(logarithms.max() - RANGE) + 4) / 4
    return scaled.to(torch.promote_types(audio.dtype, torch.float32))
