"""The slow truth of the Recurrent Memory Transformer, around a body of one causal layer."""

from __future__ import annotations

import numpy as np

from .attention import _wide


def read_by_segments(x, memory, weight, *, segment_length, backprop_segments=None):
    """Each segment between two copies of the memory; the second one's outputs are the next memory.

    The body is tanh(W times the mean of all tokens so far). backprop_segments changes no number.

    Shapes: x (B, L, D), memory (B, M, D), weight (D, D) -> (B, L, D), (B, M, D). Source: Bulatov et al. 2022, section 3.2.
    """
    x, memory, weight = _wide(x), _wide(memory).copy(), _wide(weight)
    output = np.zeros_like(x)
    for b in range(len(x)):
        for start in range(0, x.shape[1], segment_length):
            tokens = [*memory[b], *x[b, start : start + segment_length], *memory[b]]
            states = [
                np.tanh(weight @ (sum(tokens[: n + 1]) / (n + 1))) for n in range(len(tokens))
            ]
            for n in range(memory.shape[1]):
                memory[b, n] = states[len(states) - memory.shape[1] + n]
            for n in range(len(tokens) - 2 * memory.shape[1]):
                output[b, start + n] = states[memory.shape[1] + n]
    return output, memory
