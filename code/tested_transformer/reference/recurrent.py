"""The slow truth of the recurrent translator."""

from __future__ import annotations

import numpy as np

from .attention import _wide, matmul, softmax, weighted_sum
from .scoring import additive_scores
from .transformer import linear


def gru_step(x, state, weights, name, end=""):
    """The next state of a GRU, with torch's names: three gates, then old and new are mixed.

    Shapes: x (in), state (D) -> (D). Source: Cho et al. 2014, equations 5 to 8, except that the
    reset gate stands behind the state's matrix, as in torch.
    """

    def gates(kind, vector):
        matrix, bias = (weights[f"{name}.{part}_{kind}{end}"] for part in ("weight", "bias"))
        return np.split(matmul(vector[None], matrix.T)[0] + bias, 3)

    (reset_x, update_x, new_x), (reset_h, update_h, new_h) = gates("ih", x), gates("hh", state)
    reset, update = (1 / (1 + np.exp(-a)) for a in (reset_x + reset_h, update_x + update_h))
    return (1 - update) * np.tanh(new_x + reset * new_h) + update * state


def recurrent_memory(source, weights):
    """One sentence without padding, read in both directions. Shapes: (S) -> (S, D)."""
    words = [weights["source_embedding.weight"][token] for token in source]
    halves = []
    for order, end in ((slice(None), "_l0"), (slice(None, None, -1), "_l0_reverse")):
        state, states = 0 * weights[f"encoder.bias_hh{end}"][: len(words[0]) // 2], []
        for word in words[order]:
            state = gru_step(word, state, weights, "encoder", end)
            states.append(state)
        halves.append(np.array(states)[order])
    return np.concatenate(halves, axis=-1)


def recurrent_translator(source, target, weights):
    """One sentence through a GRU that reads and a GRU that writes, word by word.

    Shapes: source (S), target (L), without padding -> logits (L, V), and the weights (L, S) of the
    attention, or None if the weights have none. Source: Bahdanau et al. 2015, appendix A.
    """
    weights = {name: _wide(array) for name, array in weights.items()}
    memory = recurrent_memory(source, weights)
    state = np.concatenate(np.split(memory[-1], 2)[:1] + np.split(memory[0], 2)[1:])
    matrices = [weights.get(f"attention.{name}.weight") for name in ("w_query", "w_key", "w_v")]
    logits, looked = [], []
    for token in target:
        word, context = weights["target_embedding.weight"][token], memory[0, :0]
        if matrices[0] is not None:
            query, key, w_v = matrices
            looked.append(softmax(additive_scores(state[None], memory, query, key, w_v[0])[0]))
            context = weighted_sum(looked[-1][None], memory)[0]
        state = gru_step(np.concatenate([word, context]), state, weights, "decoder")
        logits.append(linear(np.concatenate([state, context]), weights, "output"))
    return np.array(logits), np.array(looked) if looked else None
