"""YaRN: the package's class, the paper's formula pair by pair, and two wrong ones."""

import math

import torch

from answers import right, wrong
from tested_transformer.positions.scaled_rotary import YarnScaling

right("yarn", "the package's")(YarnScaling)


def ramp(frequency, trained, round_down=math.floor, round_up=math.ceil):
    half, step = len(frequency), math.log(frequency[0] / frequency[1])
    low = round_down(math.log(trained / (2 * math.pi * 32)) / step)
    high = round_up(math.log(trained / (2 * math.pi)) / step)
    low, high = max(low, 0), min(high, 2 * half - 1)
    return [min(max((i - low) / max(high - low, 0.001), 0.0), 1.0) for i in range(half)]


def scaled(frequency, factor, shares, attention_factor):
    lower = [f * (1 - r) + f / factor * r for f, r in zip(frequency, shares, strict=True)]
    usual = 0.1 * math.log(factor) + 1 if attention_factor is None else attention_factor
    return torch.stack([*lower, frequency.new_tensor(usual)])


@right("yarn", "pair by pair")
def by_pair(frequency, factor, trained, attention_factor=None):
    return scaled(frequency, factor, ramp(frequency, trained), attention_factor)


@wrong("yarn", "the ends of the ramp are not rounded")
def not_rounded(frequency, factor, trained, attention_factor=None):
    shares = ramp(frequency, trained, round_down=float, round_up=float)
    return scaled(frequency, factor, shares, attention_factor)


@wrong("yarn", "linear in the turns, as the paper writes it")
def by_turns(frequency, factor, trained, attention_factor=None):
    turns = (trained * frequency / (2 * math.pi)).tolist()
    shares = [1 - min(max((t - 1) / 31, 0.0), 1.0) for t in turns]
    return scaled(frequency, factor, shares, attention_factor)
