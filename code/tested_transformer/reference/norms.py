"""The slow truth of normalization and residual connections."""

from __future__ import annotations

import numpy as np

from .attention import _wide, matmul


def layer_norm(x, weight, bias, eps=1e-5):
    """(x - mean) / sqrt(var + eps) weight + bias, each token by its own D numbers.

    Shapes: (*batch, D), (D), (D) -> (*batch, D). Source: Ba et al. 2016, equations 3 and 4.
    """
    x, weight, bias = map(_wide, (x, weight, bias))
    output = np.zeros_like(x)
    for token in np.ndindex(x.shape[:-1]):
        numbers = x[token]
        mean = sum(numbers) / len(numbers)
        variance = sum((n - mean) ** 2 for n in numbers) / len(numbers)
        for i, n in enumerate(numbers):
            output[(*token, i)] = (n - mean) / np.sqrt(variance + eps) * weight[i] + bias[i]
    return output


def rms_norm(x, weight, eps=1e-6):
    """X / sqrt(mean of x^2 + eps) weight. Shapes: (*batch, D), (D) -> (*batch, D).

    Source: Zhang and Sennrich 2019, equation 4.
    """
    x, weight = map(_wide, (x, weight))
    output = np.zeros_like(x)
    for token in np.ndindex(x.shape[:-1]):
        square = sum(n * n for n in x[token]) / x.shape[-1]
        for i, n in enumerate(x[token]):
            output[(*token, i)] = n / np.sqrt(square + eps) * weight[i]
    return output


def batch_norm(x, weight, bias, eps=1e-5):
    """Each feature by its mean and variance over all tokens of all samples.

    Shapes: (*batch, D), (D), (D) -> (*batch, D). Source: Ioffe and Szegedy 2015, algorithm 1.
    """
    x, weight, bias = map(_wide, (x, weight, bias))
    output = np.zeros_like(x)
    tokens = list(np.ndindex(x.shape[:-1]))
    for i in range(x.shape[-1]):
        mean = sum(x[(*t, i)] for t in tokens) / len(tokens)
        variance = sum((x[(*t, i)] - mean) ** 2 for t in tokens) / len(tokens)
        for t in tokens:
            output[(*t, i)] = (x[(*t, i)] - mean) / np.sqrt(variance + eps) * weight[i] + bias[i]
    return output


def residual_stack(x, w, gain, norm_placement, alpha=1.0):
    """A stack of N sublayers f_n(x) = tanh(x w_n), wired with norms in one of four ways.

    Shapes: x (L, D), w (N, D, D), gain (N + 1, D), the last for a final norm -> (L, D).
    Source: post: Vaswani et al. 2017; pre: Xiong et al. 2020; deep: Wang et al. 2022; dual: Xie et
    al. 2023.
    """
    x, w, gain = map(_wide, (x, w, gain))
    total = x
    for matrix, g in zip(w, gain[:-1], strict=True):
        if norm_placement == "pre":
            x = x + np.tanh(matmul(layer_norm(x, g, 0 * g), matrix))
            continue
        change = np.tanh(matmul(x, matrix))
        total = total + change
        x = layer_norm((alpha if norm_placement == "deepnorm" else 1) * x + change, g, 0 * g)
    if norm_placement == "pre":
        return layer_norm(x, gain[-1], 0 * gain[-1])
    return x + layer_norm(total, gain[-1], 0 * gain[-1]) if norm_placement == "resi_dual" else x
