"""The slow truth of permutation masks: each token's turn, pair by pair."""

from __future__ import annotations

import numpy as np


def permutation_masks(order, predicted=None, functional=None):
    """Content mask and query mask, True where query i may attend to key j.

    Shapes: (B, L) -> twice (B, 1, L, L). Source: Yang et al. 2019, section 2.3.
    """
    batch, length = order.shape
    query = np.zeros((batch, 1, length, length), bool)
    for b in range(batch):
        turns = {int(position): turn for turn, position in enumerate(order[b])}
        for position in range(length):
            is_hidden = predicted is None or predicted[b, position]
            is_hidden = is_hidden or (functional is not None and functional[b, position])
            turns[position] = turns[position] if is_hidden else -1  # context: before all others
        for i, j in np.ndindex(length, length):
            query[b, 0, i, j] = turns[j] == -1 or turns[j] < turns[i]
    content = query.copy()
    for i in range(length):
        content[:, 0, i, i] = True
    return content, query


def target_mapping(targets, length):
    """1 at each target's position. Shapes: (B, M) -> (B, M, L)."""
    output = np.zeros((*targets.shape, length))
    for b, m in np.ndindex(targets.shape):
        output[b, m, targets[b, m]] = 1
    return output
