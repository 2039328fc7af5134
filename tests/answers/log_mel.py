"""Whisper's front end, by torch's, NumPy's and transformers' own functions."""

import math

import numpy as np
import torch

from answers import right, wrong
from tested_transformer.data.log_mel import log_mel, mel_filters

right("log_mel")(log_mel)


@right("log_mel", "torch.stft")
def by_stft(audio, rate, *, num_mels=80, length=480_000):
    audio = torch.nn.functional.pad(audio, (0, length - len(audio)))  # negative: it cuts
    window = torch.hann_window(400, dtype=audio.dtype)
    spectrum = torch.stft(audio, 400, 160, window=window, return_complex=True)[:, :-1]
    mel = mel_filters(num_mels).to(audio.dtype) @ spectrum.abs() ** 2
    logarithms = mel.clamp(min=1e-10).log10()
    return (torch.maximum(logarithms, logarithms.max() - 8.0) + 4.0) / 4.0


@right("log_mel", "NumPy")
def by_numpy(audio, rate, *, num_mels=80, length=480_000):
    samples = np.zeros(length)
    samples[: len(audio)] = audio.numpy()[:length]
    padded = np.pad(samples, 200, mode="reflect")
    frames = np.stack([padded[160 * i : 160 * i + 400] for i in range(length // 160)])
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    power = np.abs(np.fft.rfft(frames * hann)) ** 2
    logarithms = np.log10(np.maximum(mel_filters(num_mels).numpy() @ power.T, 1e-10))
    features = (np.maximum(logarithms, logarithms.max() - 8) + 4) / 4
    return torch.from_numpy(features).to(audio.dtype)


@wrong("log_mel", "replicated borders")
def replicated(audio, rate, *, num_mels=80, length=480_000):
    audio = torch.nn.functional.pad(audio, (0, length - len(audio)))
    padded = torch.cat([audio[:1].expand(200), audio, audio[-1:].expand(200)])
    window = torch.hann_window(400, dtype=audio.dtype)
    frames = torch.fft.rfft(padded.unfold(0, 400, 160) * window)[:-1].abs() ** 2
    logarithms = (mel_filters(num_mels).to(audio) @ frames.T).clamp(min=1e-10).log10()
    return (torch.maximum(logarithms, logarithms.max() - 8.0) + 4.0) / 4.0


@wrong("log_mel", "decibels")
def decibels(audio, rate, *, num_mels=80, length=480_000):
    return (10 * (4 * log_mel(audio, rate, num_mels=num_mels, length=length) - 4) + 4) / 4


@wrong("log_mel", "each frame has a floor of its own")
def floor_of_frames(audio, rate, *, num_mels=80, length=480_000):
    audio = torch.nn.functional.pad(audio, (0, length - len(audio)))
    window = torch.hann_window(400, dtype=audio.dtype)
    spectrum = torch.stft(audio, 400, 160, window=window, return_complex=True)[:, :-1]
    logarithms = (mel_filters(num_mels).to(audio) @ spectrum.abs() ** 2).clamp(min=1e-10).log10()
    return (torch.maximum(logarithms, logarithms.amax(0) - 8.0) + 4.0) / 4.0


@wrong("log_mel", "a power of 1e-10 is added, not the least")
def added(audio, rate, *, num_mels=80, length=480_000):
    audio = torch.nn.functional.pad(audio, (0, length - len(audio)))
    window = torch.hann_window(400, dtype=audio.dtype)
    spectrum = torch.stft(audio, 400, 160, window=window, return_complex=True)[:, :-1]
    power = mel_filters(num_mels).to(audio) @ spectrum.abs() ** 2
    logarithms = (power + 1e-10).log() / math.log(10)
    return (torch.maximum(logarithms, logarithms.max() - 8.0) + 4.0) / 4.0
