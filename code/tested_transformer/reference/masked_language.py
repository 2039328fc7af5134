"""Masked tokens and pairs of sentences, one after the other, with NumPy's random numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def mask_tokens(ids, special, seed, mask_id, vocab_size, rate=0.15) -> np.ndarray:
    """What is read and what is to be predicted, (2, B, L); -100: nothing is."""
    rng = np.random.default_rng(seed)
    inputs, labels = np.array(ids), np.full_like(ids, -100)
    for row in range(len(ids)):
        places = [place for place in range(ids.shape[1]) if not special[row, place]]
        count = min(max(1, round(rate * len(places))), len(places))
        for place in rng.permutation(places)[:count].astype(int):
            labels[row, place] = ids[row, place]
            draw = rng.random()
            if draw < 0.8:
                inputs[row, place] = mask_id
            elif draw >= 0.9:
                inputs[row, place] = rng.integers(vocab_size)
    return np.stack([inputs, labels])


def next_sentence_pairs(documents: Sequence, seed: int) -> tuple[list[tuple], np.ndarray]:
    """(first, second) and labels: 0 where the second follows, 1 where it comes from elsewhere."""
    rng, pairs, labels = np.random.default_rng(seed), [], []
    for number, document in enumerate(documents):
        for place in range(len(document) - 1):
            first, second = document[place], document[place + 1]
            wrong = [
                sentence
                for other in range(len(documents))
                for sentence in documents[other]
                if other != number and sentence != second
            ]
            follows = rng.random() < 0.5
            pairs.append((first, second if follows else wrong[rng.integers(len(wrong))]))
            labels.append(0 if follows else 1)
    return pairs, np.array(labels)


def join_pairs(pairs: Sequence, cls_id: int, sep_id: int, pad_id: int = 0) -> np.ndarray:
    """IDs, what is real, and segments, (3, B, L)."""
    length = max((len(first) + len(second) + 3 for first, second in pairs), default=0)
    found = np.zeros((3, len(pairs), length), dtype=np.int64)
    found[0] = pad_id
    for row, (first, second) in enumerate(pairs):
        place = 0
        for segment, words in ((0, (cls_id, *first, sep_id)), (1, (*second, sep_id))):
            for word in words:
                found[:, row, place] = word, 1, segment
                place += 1
    return found
