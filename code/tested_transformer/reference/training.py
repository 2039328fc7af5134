"""The slow truth of the loss and the learning-rate schedules."""

from __future__ import annotations

import numpy as np

from .attention import _wide


def word_target(word, vocab, smoothing=0.0, dtype=np.float64):
    """What label smoothing asks for: 1 - e for the word, and e / V for every word, it included.

    Source: Szegedy et al. 2016, section 7.

    >>> word_target(1, 4, 0.2).round(2).tolist()
    [0.05, 0.85, 0.05, 0.05]
    """
    target = np.full(vocab, dtype(smoothing) / vocab, dtype=dtype)
    target[word] += 1 - dtype(smoothing)
    return target


def cross_entropy(logits, expected, ignore=0, label_smoothing=0.0, reduction="mean"):
    """-sum of target x log p, word by word, over all words that are not `ignore`.

    Shapes: logits (*batch, V), expected (*batch) -> a number. Source: Vaswani et al. 2017, section 5.4.
    """
    logits = _wide(logits)
    losses = []
    for place in np.ndindex(expected.shape):
        if expected[place] != ignore:
            row = logits[place]
            top = row.max()
            log_p = row - top - np.log(np.exp(row - top).sum())
            target = word_target(expected[place], len(row), label_smoothing, logits.dtype.type)
            losses.append(-(target * log_p).sum())
    total = sum(losses, start=logits.dtype.type(0))
    return total / max(len(losses), 1) if reduction == "mean" else total


def next_token_loss(logits, labels, ignore=-100):
    """-log p of each label but the first, by the logits of the position before it; the mean of all.

    Shapes: logits (B, L, V), labels (B, L) -> a number. Source: Radford et al. 2018, equation 1.
    """
    logits, losses = _wide(logits), []
    for b in range(labels.shape[0]):
        for t in range(labels.shape[1] - 1):
            if labels[b, t + 1] != ignore:
                row = logits[b, t] - logits[b, t].max()
                losses.append(np.log(np.exp(row).sum()) - row[labels[b, t + 1]])
    return sum(losses, start=logits.dtype.type(0)) / max(len(losses), 1)


def paper_rate(step, d_model, warmup=4000, factor=1.0):
    """The paper's learning rate, its two halves told apart. Source: Vaswani et al. 2017, equation 3."""
    peak = factor / np.sqrt(d_model * warmup)
    return peak * step / warmup if step <= warmup else peak * np.sqrt(warmup / step)


def one_cycle_rate(step, total, peak, warmup=0.3, start_ratio=25.0, end_ratio=1e4):
    """Half a cosine up to the peak, half a cosine down. Source: Smith and Topin 2019, as in torch."""
    first, turn, done = peak / start_ratio, warmup * total, step - 1
    if step <= turn:
        share, low = done / (turn - 1), first
    else:
        share, low = 1 - (step - turn) / (total - turn), first / end_ratio
    return low + (peak - low) * (1 - np.cos(np.pi * share)) / 2
