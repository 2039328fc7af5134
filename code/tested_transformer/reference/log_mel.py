"""The slow truth of Whisper's front end."""

from __future__ import annotations

from functools import cache

import numpy as np

from .attention import _wide

RATE, WINDOW, HOP = 16_000, 400, 160


def log_mel(audio, rate=RATE, num_mels=80, length=30 * RATE):
    """Window by window and frequency by frequency: a Fourier sum, mel bands, logarithms.

    Shapes: (N) -> (num_mels, length // 160). Source: Radford et al. 2022 (Whisper), section 2.2.
    """
    audio = _wide(audio)
    kind = audio.dtype.type
    bands = [mel_band(m, num_mels).astype(kind) for m in range(num_mels)]
    output = np.zeros((num_mels, length // HOP), dtype=kind)
    for frame in range(output.shape[1]):
        power = power_of(window_of(audio, frame, length))
        for m, band in enumerate(bands):
            output[m, frame] = np.log10(max(np.sum(band * power), kind("1e-10")))
    return (np.maximum(output, output.max() - 8) + 4) / 4


def window_of(audio, frame, length):
    """The 400 samples around sample 160 x frame: silence after the end, mirrored at both borders."""
    samples = np.zeros(WINDOW, dtype=audio.dtype)
    for n in range(WINDOW):
        at = abs(frame * HOP + n - WINDOW // 2)  # before the first sample: as far after it
        at = min(at, 2 * (length - 1) - at)  # after the last one: as far before it
        samples[n] = audio[at] if at < len(audio) else 0
    return samples


def power_of(samples):
    """|sum over n of hann(n) x(n) exp(-2 pi i k n / 400)|^2 for k = 0 ... 200."""
    samples = samples * (1 - wave_of(1)[0].astype(samples.dtype)) / 2
    power = np.zeros(WINDOW // 2 + 1, dtype=samples.dtype)
    for k in range(len(power)):
        cosine, sine = (wave.astype(samples.dtype) for wave in wave_of(k))
        power[k] = np.sum(samples * cosine) ** 2 + np.sum(samples * sine) ** 2
    return power


@cache
def wave_of(k):
    """Cosine and sine that turn k times in a window."""
    turns = ((k * np.arange(WINDOW)) % WINDOW).astype(np.longdouble) / WINDOW
    angles = 8 * np.arctan(np.longdouble(1)) * turns
    return np.cos(angles), np.sin(angles)


@cache
def mel_band(number, num_mels):
    """The weight of each of 201 frequencies in one band: a triangle of area 1.

    Source: Slaney 1998, Auditory Toolbox.
    """
    step = np.longdouble(slaney_mels(RATE // 2)) / (num_mels + 1)
    low, peak, high = (slaney_hertz(step * (number + corner)) for corner in range(3))
    band = np.zeros(WINDOW // 2 + 1, dtype=np.longdouble)
    for k in range(len(band)):
        frequency = np.longdouble(k * RATE) / WINDOW
        rising, falling = (frequency - low) / (peak - low), (high - frequency) / (high - peak)
        band[k] = max(0, min(rising, falling)) * 2 / (high - low)
    return band


def slaney_mels(frequency):
    """Hertz to mels: 15 mels up to 1000 Hz, then 27 mels for every factor of 6.4."""
    if frequency < 1000:
        return np.longdouble(3 * frequency) / 200
    return 15 + 27 * np.log(np.longdouble(frequency) / 1000) / np.log(np.longdouble("6.4"))


def slaney_hertz(mels):
    """Mels to hertz."""
    if mels < 15:
        return mels * 200 / 3
    return 1000 * np.longdouble("6.4") ** ((mels - 15) / 27)
