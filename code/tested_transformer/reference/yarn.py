"""YaRN, pair by pair."""

from __future__ import annotations

import numpy as np


def yarn(frequency, factor, trained, attention_factor=None):
    """Scaled frequencies, and the attention factor behind them. Shapes: (half) -> (half + 1).

    Source: Peng et al. 2024; the ramp by indices as in jquesnelle/yarn.
    """
    half, lower = len(frequency), []
    step = np.log(frequency[0] / frequency[1])
    ends = [np.log(trained * frequency[0] / (2 * np.pi * turns)) / step for turns in (32.0, 1.0)]
    first, last = max(np.floor(ends[0]), 0), min(np.ceil(ends[1]), 2 * half - 1)
    for i in range(half):
        share = min(max((i - first) / ((last - first) or 0.001), 0.0), 1.0)
        lower.append(frequency[i] * (1 - share) + frequency[i] / factor * share)
    usual = 0.1 * np.log(factor) + 1.0 if attention_factor is None else attention_factor
    return np.array([*lower, usual])
