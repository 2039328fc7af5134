"""The auxiliary losses of the character Transformer, loss by loss."""

from __future__ import annotations

import numpy as np

from .training import cross_entropy


def layer_weights(num_layers, progress):
    """1 until l/2n of the training is done, then 0; the last layer: 1. Source: Al-Rfou et al. 2019."""
    weights = np.ones(num_layers)
    for layer in range(1, num_layers):
        if progress >= layer / (2 * num_layers):
            weights[layer - 1] = 0.0
    return weights


def auxiliary_loss(logits, ids, progress, extra_weight=0.5):
    """Layer by layer and target by target. Shapes: logits (n, K, B, L, V), ids (B, L) -> a number."""
    length, total = ids.shape[1], 0.0
    for layer, weight in enumerate(layer_weights(len(logits), progress)):
        for k in range(logits.shape[1]):
            known = max(length - k - 1, 0)
            loss = cross_entropy(logits[layer, k, :, :known], ids[:, k + 1 :], ignore=None)
            total = total + weight * (1.0 if k == 0 else extra_weight) * loss
    return total
