"""The slow truth of RWKV-4's WKV: weights of all tokens so far, each less for every token since."""

from __future__ import annotations

import numpy as np


def wkv(key, value, log_decay, bonus, *, state=None, real=None, chunk_size=None):
    """For each feature and token a mean of the values so far, weighted by exp(key + log_decay x tokens since).

    The token's own weight is exp(key + bonus). Logarithms of all weights are kept, the state's first: no sum can
    overflow. Gives the output, and numerator, denominator and maximum of all weights after the last token.

    Shapes: key and value (B, L, D), log_decay and bonus (D), state (B, 3, D), real (B, L) -> (B, L, D), (B, 3, D).
    Source: Peng et al. 2023 (RWKV).
    """
    batch, length, features = key.shape
    output, states = np.zeros_like(value), np.zeros((batch, 3, features), key.dtype)
    for b, i in np.ndindex(batch, features):
        logs, values, counts = [], [], []
        if state is not None:
            logs, values, counts = [state[b, 2, i]], [state[b, 0, i]], [state[b, 1, i]]
        for t in range(length):
            own = [*logs, key[b, t, i] + bonus[i]]
            numerator, denominator, _ = summed(own, [*values, value[b, t, i]], [*counts, 1])
            output[b, t, i] = numerator / denominator
            if real is None or real[b, t]:
                logs = [each + log_decay[i] for each in logs] + [key[b, t, i]]
                values, counts = [*values, value[b, t, i]], [*counts, 1]
        states[b, :, i] = summed(logs, values, counts)
    return output, states


def summed(logs, values, counts):
    """The sums of weight x value and weight x count, each divided by the largest weight, and its logarithm."""
    top = max(logs, default=-np.inf)
    weights = [np.exp(each - top) for each in logs]
    numerator = sum((w * v for w, v in zip(weights, values, strict=True)), start=0)
    return numerator, sum((w * n for w, n in zip(weights, counts, strict=True)), start=0), top
