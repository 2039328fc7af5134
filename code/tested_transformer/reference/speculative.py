"""The slow truth of speculative decoding: what the target says, and what speculation gives.

A table of logits has a row for each prefix: the empty one, those of one token, of two, and so on.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from .attention import _wide, softmax
from .generation import top_k


def sampled_from(logits, temperature, k):
    """The distribution after temperature and top-k; at temperature 0 all on the largest. Shape: (V)."""
    logits = _wide(logits)
    if temperature == 0:
        return np.eye(len(logits), dtype=logits.dtype)[int(np.argmax(logits))]
    return softmax(top_k(logits[None] / temperature, k)[0])


def row_of(ids, vocab):
    """The row of a prefix in a table."""
    row = 0
    for token in ids:
        row = row * vocab + token + 1
    return row


def target_distribution(target_logits, length, temperature, k):
    """The probability of each sequence of length + 1 tokens when the target samples one by one.

    Shapes: target_logits (rows, V) -> (V, ..., V).
    """
    p = np.array([sampled_from(row, temperature, k) for row in target_logits])
    vocab = p.shape[1]
    found = np.ones((vocab,) * (length + 1), dtype=p.dtype)
    for ids in product(range(vocab), repeat=length + 1):
        for n, token in enumerate(ids):
            found[ids] *= p[row_of(ids[:n], vocab), token]
    return found


def accepted_distribution(draft_ids, q, p):
    """Each possible result of checking a draft, and its probability: (tokens, probability) pairs.

    q (K, V) and p (K + 1, V) are the distributions at the positions of the draft.
    """
    reached = 1.0  # the probability that all tokens so far were accepted
    for n, token in enumerate(draft_ids):
        accepted = min(1.0, p[n, token] / q[n, token])
        missing = [max(0.0, a - b) for a, b in zip(p[n], q[n], strict=True)]
        for other, part in enumerate(missing):
            if part > 0 and accepted < 1:
                yield (*draft_ids[:n], other), reached * (1 - accepted) * part / sum(missing)
        reached = reached * accepted
    for bonus, part in enumerate(p[-1]):
        yield (*draft_ids, bonus), reached * part


def every_round(target_logits, draft_logits, length, temperature, k):
    """Each possible result of one round, over all drafts: (tokens, probability) pairs."""
    tables = [
        np.array([sampled_from(row, temperature, k) for row in logits])
        for logits in (draft_logits, target_logits)
    ]
    vocab = target_logits.shape[1]
    for draft_ids in product(range(vocab), repeat=length):
        rows = [row_of(draft_ids[:n], vocab) for n in range(length + 1)]
        q, p = tables[0][rows[:-1]], tables[1][rows]
        drafted = np.prod([q[n, token] for n, token in enumerate(draft_ids)])
        if drafted > 0:
            for tokens, probability in accepted_distribution(draft_ids, q, p):
                yield tokens, drafted * probability


def speculative_distribution(target_logits, draft_logits, length, temperature, k):
    """The probability of each sequence of length + 1 tokens when a draft is checked first.

    Where a round gives fewer tokens, the target samples the others.

    Shapes: target_logits and draft_logits (rows, V) -> (V, ..., V).
    """
    p = np.array([sampled_from(row, temperature, k) for row in target_logits])
    vocab = p.shape[1]
    found = np.zeros((vocab,) * (length + 1), dtype=p.dtype)
    for tokens, part in every_round(target_logits, draft_logits, length, temperature, k):
        for rest in product(range(vocab), repeat=length + 1 - len(tokens)):
            ids, probability = (*tokens, *rest), part
            for n in range(len(tokens), length + 1):
                probability = probability * p[row_of(ids[:n], vocab), ids[n]]
            found[ids] += probability
    return found


def mean_tokens(target_logits, draft_logits, length, temperature, k):
    """The mean number of tokens of one round: 1 to length + 1."""
    every = every_round(target_logits, draft_logits, length, temperature, k)
    return sum(probability * len(tokens) for tokens, probability in every)
