"""The slow truth of the feed-forward network."""

from __future__ import annotations

import numpy as np

from .attention import _wide, dot


def error_function(z):
    """erf(z) as 2/sqrt(pi) exp(-z^2) (z + 2 z^3/3 + 4 z^5/15 + ...), a series without cancellation.

    >>> round(float(error_function(np.float64(1.0))), 6)
    0.842701
    """
    size = min(abs(z), type(z)(7))  # beyond 7 it is 1 in every dtype here
    term = total = size
    n = 0
    while term > total * np.finfo(type(total)).eps / 8:
        n += 1
        term = term * 2 * size * size / (2 * n + 1)
        total = total + term
    half_pi = 2 * np.arctan(type(z)(1))
    return np.sign(z) * np.sqrt(2 / half_pi) * np.exp(-size * size) * total


def bend(x, activation):
    """One number through the activation of that name. Sources: as in `feed_forward.py`."""
    one = type(x)(1)
    if activation == "relu":
        return max(x, 0 * one)
    if activation == "silu":
        return x / (1 + np.exp(-x))
    if activation == "gelu":
        return x * (1 + error_function(x / np.sqrt(2 * one))) / 2
    if activation == "gelu_tanh":
        pi = 4 * np.arctan(one)
        return x * (1 + np.tanh(np.sqrt(2 / pi) * (x + 44715 * one / 10**6 * x**3))) / 2
    raise ValueError(activation)


def feed_forward(x, w_up, b_up, w_down, b_down, activation="relu"):
    """Each token alone: d_ff dot products, each bent, then D dot products of these.

    Shapes: (*batch, D), (D, d_ff), (d_ff), (d_ff, D), (D) -> (*batch, D).
    Source: Vaswani et al. 2017, equation 2.
    """
    x, w_up, b_up, w_down, b_down = map(_wide, (x, w_up, b_up, w_down, b_down))
    output = np.zeros((*x.shape[:-1], len(b_down)), dtype=x.dtype)
    for token in np.ndindex(x.shape[:-1]):
        pairs = zip(w_up.T, b_up, strict=True)
        wide = np.array([bend(dot(x[token], w) + b, activation) for w, b in pairs], dtype=x.dtype)
        output[token] = [dot(wide, w) + b for w, b in zip(w_down.T, b_down, strict=True)]
    return output


def swiglu(x, w_gate, w_up, w_down):
    """Each token alone: two rows of d_ff dot products, one bent by SiLU, multiplied, then narrowed.

    Shapes: (*batch, D), (D, d_ff), (D, d_ff), (d_ff, D) -> (*batch, D).
    Source: Shazeer 2020, equation 6.
    """
    x, w_gate, w_up, w_down = map(_wide, (x, w_gate, w_up, w_down))
    output = np.zeros((*x.shape[:-1], w_down.shape[1]), dtype=x.dtype)
    for token in np.ndindex(x.shape[:-1]):
        wide = [
            bend(dot(x[token], gate), "silu") * dot(x[token], value)
            for gate, value in zip(w_gate.T, w_up.T, strict=True)
        ]
        output[token] = [dot(np.array(wide, dtype=x.dtype), w) for w in w_down.T]
    return output
