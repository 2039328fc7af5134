"""The answers to the exercises of chapter 14 on sound."""

import math

import numpy as np
import torch

from . import right, wrong
from .whisper import by_convolutions, by_numpy, by_openai, by_relu, turned

# --- Which samples a frame covers -----------------------------------------------------------------


@right("ch14.frame_span")
def by_formula(frame, window, hop):
    first = frame * hop - window // 2
    return first, first + window - 1


@right("ch14.frame_span", "by cutting numbers into windows")
def by_unfold(frame, window, hop):
    samples = torch.arange(-(window // 2), frame * hop + window)
    covered = samples.unfold(0, window, hop)[frame]
    return int(covered[0]), int(covered[-1])


@wrong("ch14.frame_span", "mirrored numbers before the audio")
def mirrored(frame, window, hop):
    first, last = by_formula(frame, window, hop)
    return abs(first), last


@wrong("ch14.frame_span", "centered on the middle of the hop")
def middle_of_hop(frame, window, hop):
    first, last = by_formula(frame, window, hop)
    return first + hop // 2, last + hop // 2


# --- From powers to features ----------------------------------------------------------------------


@right("ch14.log_scale")
def by_torch(power):
    logarithms = power.clamp(min=1e-10).log10()
    return (torch.maximum(logarithms, logarithms.max() - 8.0) + 4.0) / 4.0


@right("ch14.log_scale", "the floor among the powers")
def floor_first(power):
    least = max(1e-10, 1e-8 * float(power.max()))
    return (power.clamp(min=least).log() / math.log(10) + 4) / 4


@wrong("ch14.log_scale", "divided, then 1 added to the power")
def one_added(power):
    return ((1 + power).log10() + 4) / 4


@wrong("ch14.log_scale", "a floor of the band")
def floor_of_bands(power):
    logarithms = power.clamp(min=1e-10).log10()
    return (logarithms.maximum(logarithms.amax(1, keepdim=True) - 8) + 4) / 4


# --- Whisper's encoder ----------------------------------------------------------------------------

right("ch14.audio_positions", "OpenAI's lines")(by_openai)
right("ch14.audio_positions", "NumPy")(by_numpy)
right("ch14.audio_stem")(by_convolutions)
wrong("ch14.audio_stem", "ReLU")(by_relu)
wrong("ch14.audio_stem", "kernels turned around")(turned)


@wrong("ch14.audio_positions", "only sines")
def only_sines(length, d_model):
    angles = np.outer(np.arange(length), np.logspace(0, -4, d_model // 2))
    return torch.from_numpy(np.hstack([np.sin(angles), np.sin(angles)])).float()
