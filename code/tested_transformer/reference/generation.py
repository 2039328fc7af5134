"""The slow truth of sampling, greedy decoding and beam search."""

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


def greedy(table, start, max_new, eos, padding):
    """After each word the likeliest next, until eos. Shapes: (V, V), (B, L) -> (B, max_new)."""
    rows = []
    for first in start[:, -1]:
        words = []
        while len(words) < max_new and eos not in words:
            words.append(int(np.argmax(table[words[-1] if words else first])))
        rows.append(words + [padding] * (max_new - len(words)))
    return np.array(rows)


def beam_search(table, start, num_beams, max_new, length_penalty, eos):
    """The best (score, words) that a beam of that width meets; table (N, V, V).

    The table scores, for each place in the sentence, the next word after each word. The search never
    stops early, and forgets no sentence that ended among the num_beams best steps.
    """
    running, ended = [(0.0, [])], []
    for length in range(1, max_new + 1):
        steps = []
        for score, words in running:
            gains = np.log(softmax(table[length - 1, words[-1] if words else start]))
            steps += [(score + gain, [*words, word]) for word, gain in enumerate(gains)]
        steps.sort(key=lambda step: -step[0])
        for score, words in steps[:num_beams]:
            if words[-1] == eos or length == max_new:
                ended.append((score / length**length_penalty, words))
        running = [step for step in steps if step[1][-1] != eos][:num_beams]
    return max(ended)
