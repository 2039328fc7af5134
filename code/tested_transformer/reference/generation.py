"""The slow truth of sampling."""

from __future__ import annotations

import numpy as np

from .attention import _wide, softmax


def top_k(logits, k):
    """A word stays if fewer than k of its row are likelier; the rest is -inf. Shapes: (B, V)."""
    logits = _wide(logits)
    kept = np.full_like(logits, -np.inf)
    for b, row in enumerate(logits):
        for v, score in enumerate(row):
            if sum(other > score for other in row) < k:
                kept[b, v] = score
    return kept


def top_p(logits, p):
    """The likeliest words stay, one after the other, until together they have p. Shapes: (B, V)."""
    logits = _wide(logits)
    kept = np.full_like(logits, -np.inf)
    for b, row in enumerate(logits):
        probability, total = softmax(row), 0.0
        for v in sorted(range(len(row)), key=lambda v, row=row: -row[v]):
            if total < p:
                kept[b, v] = row[v]
            total += probability[v]
    return kept


def repetition(logits, prefix_ids, penalty):
    """Each word that was said pays once: s / penalty above 0, s * penalty below. Shapes: (B, V)."""
    logits = _wide(logits).copy()
    for b, words in enumerate(prefix_ids):
        for v in set(words.tolist()):
            logits[b, v] = logits[b, v] / penalty if logits[b, v] > 0 else logits[b, v] * penalty
    return logits
