"""How Whisper's encoder begins, by the package's, torch's and OpenAI's ways."""

import math

import numpy as np
import torch
from torch.nn import functional

from answers import right, wrong
from tested_transformer.models.whisper import AudioStem, WhisperConfig, audio_positions

right("audio_positions")(audio_positions)


@right("audio_positions", "OpenAI's lines")
def by_openai(length, d_model):
    increment = math.log(10000) / (d_model // 2 - 1)
    speeds = torch.exp(-increment * torch.arange(d_model // 2))
    angles = torch.arange(length)[:, None] * speeds[None, :]
    return torch.cat([torch.sin(angles), torch.cos(angles)], dim=1)


@right("audio_positions", "NumPy")
def by_numpy(length, d_model):
    speeds = np.logspace(0, -4, d_model // 2)
    angles = np.outer(np.arange(length), speeds)
    return torch.from_numpy(np.hstack([np.sin(angles), np.cos(angles)])).float()


@wrong("audio_positions", "turned backwards")
def backwards(length, d_model):
    found = audio_positions(length, d_model)
    return torch.cat([-found[:, : d_model // 2], found[:, d_model // 2 :]], 1)


@wrong("audio_positions", "base 1000")
def base_1000(length, d_model):
    speeds = torch.logspace(0, -3, d_model // 2)
    angles = torch.arange(length)[:, None] * speeds
    return torch.cat([angles.sin(), angles.cos()], 1)


@right("audio_stem", "the package's module")
def by_module(features, first_weight, first_bias, second_weight, second_bias, positions):
    (width, mels, _), count = first_weight.shape, len(positions)
    even = WhisperConfig(9, num_mels=mels, num_positions=count, d_model=4, num_heads=1)
    stem = AudioStem(even)
    stem.first, stem.second = (
        torch.nn.Conv1d(mels, width, 3, padding=1),
        torch.nn.Conv1d(width, width, 3, stride=2, padding=1),
    )
    weights = {
        "first.weight": first_weight, "first.bias": first_bias,
        "second.weight": second_weight, "second.bias": second_bias, "positions": positions,
    }  # fmt: skip
    return torch.func.functional_call(stem.to(features), weights, features)


@right("audio_stem", "torch's convolutions")
def by_convolutions(features, first_weight, first_bias, second_weight, second_bias, positions):
    x = functional.gelu(functional.conv1d(features, first_weight, first_bias, padding=1))
    x = functional.gelu(functional.conv1d(x, second_weight, second_bias, stride=2, padding=1))
    return x.permute(0, 2, 1) + positions


@right("audio_stem", "without a stride, every second kept")
def every_second(features, first_weight, first_bias, second_weight, second_bias, positions):
    x = functional.gelu(functional.conv1d(features, first_weight, first_bias, padding="same"))
    x = functional.conv1d(x, second_weight, second_bias, padding="same")[:, :, ::2]
    return functional.gelu(x).mT + positions


@wrong("audio_stem", "kernels turned around")
def turned(features, first_weight, first_bias, second_weight, second_bias, positions):
    weights = first_weight.flip(-1), first_bias, second_weight.flip(-1), second_bias
    return by_convolutions(features, *weights, positions)


@wrong("audio_stem", "ReLU")
def by_relu(features, first_weight, first_bias, second_weight, second_bias, positions):
    x = functional.conv1d(features, first_weight, first_bias, padding=1).relu()
    x = functional.conv1d(x, second_weight, second_bias, stride=2, padding=1).relu()
    return x.mT + positions


@wrong("audio_stem", "the last sample is repeated at the ends")
def replicated(features, first_weight, first_bias, second_weight, second_bias, positions):
    def around(x):
        return functional.pad(x, (1, 1), mode="replicate") if len(x) else functional.pad(x, (1, 1))

    x = functional.gelu(functional.conv1d(around(features), first_weight, first_bias))
    x = functional.gelu(functional.conv1d(around(x), second_weight, second_bias, stride=2))
    return x.mT + positions
