"""The famous mistakes with YaRN: the right frequencies and attention factor with one step gone wrong."""

from __future__ import annotations

import math

import torch

from ..mistakes import Formula, mistake


class YarnFormula(Formula):
    """The right formula, cut into the steps that the mutants replace one at a time."""

    fast, slow = 32.0, 1.0

    def __call__(self, frequency, factor, trained, attention_factor=None):
        divided = self.divided(frequency, trained)
        lower = frequency * (1 - divided) + frequency / factor * divided
        return torch.cat((lower, lower.new_tensor([self.scale(factor, attention_factor)])))

    def divided(self, frequency, trained):
        """The weight of the divided frequency: 0 for pairs with many turns, 1 for those with few."""
        first, last = (
            math.floor(self.index(frequency, trained, self.fast)),
            math.ceil(self.index(frequency, trained, self.slow)),
        )
        first, last = max(first, 0), min(last, 2 * len(frequency) - 1)
        index = torch.arange(len(frequency), dtype=frequency.dtype)
        return ((index - first) / ((last - first) or 0.001)).clamp(0, 1)

    def index(self, frequency, trained, turns):
        """Of the pair that makes so many turns in the trained length."""
        step = math.log(frequency[0] / frequency[1])
        return math.log(trained * float(frequency[0]) / (2 * math.pi * turns)) / step

    def scale(self, factor, attention_factor):
        """By which queries and keys are multiplied."""
        return 0.1 * math.log(factor) + 1.0 if attention_factor is None else attention_factor


@mistake(
    "an explicit attention factor ignored",
    rejected_by="a given attention factor is used",
    symptom="Every score of such a checkpoint has the wrong scale, at every position; configurations without the field are right.",
    cause="The attention factor is always computed by YaRN's formula, where the configuration's own value replaces it.",
    seen="ml-explore/mlx-lm pull request 1507; vllm-project/vllm pull request 46280",
)
class OwnFactorIgnored(YarnFormula):
    def scale(self, factor, attention_factor):
        return super().scale(factor, None)


@mistake(
    "YaRN without its attention factor",
    rejected_by="the usual attention factor is 0.1 ln(factor) + 1",
    symptom="On long sequences the softmax is flatter than the model was trained for.",
    cause="YaRN is more than its frequencies: queries and keys are multiplied, too.",
)
class NoFactor(YarnFormula):
    def scale(self, factor, attention_factor):
        return 1.0 if attention_factor is None else attention_factor


@mistake(
    "the scores' factor for queries and keys",
    rejected_by="the usual attention factor is 0.1 ln(factor) + 1",
    symptom="Scores are multiplied by the fourth power of the factor in place of the second.",
    cause="Queries and keys have the factor each, so that scores have its square. Here each has the square.",
)
class Squared(YarnFormula):
    def scale(self, factor, attention_factor):
        usual = super().scale(factor, attention_factor)
        return usual**2 if attention_factor is None else usual


@mistake(
    "YaRN's ramp upside down",
    rejected_by="a pair with many turns stays",
    symptom="Neighboring tokens are hard to tell apart, and distant ones have new angles.",
    cause="The weight of the divided frequency is 1 for pairs with few turns, not for those with many.",
)
class UpsideDown(YarnFormula):
    def divided(self, frequency, trained):
        return 1 - super().divided(frequency, trained)


@mistake(
    "turns counted in the new length",
    rejected_by="a pair with few turns is divided by the factor",
    symptom="Pairs that did not make a full turn in training keep too much of their frequency.",
    cause="What counts is the length in training. A pair has made the turns that it made there.",
)
class NewLength(YarnFormula):
    def divided(self, frequency, trained):
        return super().divided(frequency, 16 * trained)


@mistake(
    "the ramp without its 2 pi",
    rejected_by="a pair with few turns is divided by the factor",
    symptom="The pairs between the two ends are divided by too little.",
    cause="Radians are counted as turns: a turn has 2 pi of them.",
)
class Radians(YarnFormula):
    def index(self, frequency, trained, turns):
        return super().index(frequency, trained, turns / (2 * math.pi))
