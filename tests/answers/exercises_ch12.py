"""The answers to the exercises of chapter 12."""

import torch
from torch.nn import functional

from . import right, wrong

# --- The lowest possible loss at each position ----------------------------------------------------


def from_counts(sentences, bidirectional, key):
    """By counting in dictionaries: `key(row, i)` is what is read."""
    rows, losses = sentences.tolist(), []
    for i in range(sentences.shape[1]):
        followers = {}
        for row in rows:
            followers.setdefault(key(row, i), []).append(row[i])
        found = [followers[key(row, i)] for row in rows]
        p = [some.count(row[i]) / len(some) for some, row in zip(found, rows, strict=True)]
        losses.append(-torch.tensor(p, dtype=torch.float64).log().mean())
    return torch.stack(losses)


@right("ch12.lowest_loss")
def by_counting(sentences, bidirectional):
    def read(row, i):
        return (tuple(row[:i]), tuple(row[i + 1 :]) if bidirectional else ())

    return from_counts(sentences, bidirectional, read)


@wrong("ch12.lowest_loss", "one token of context")
def neighbors(sentences, bidirectional):
    def read(row, i):
        return (tuple(row[:i][-1:]), tuple(row[i + 1 : i + 2]) if bidirectional else ())

    return from_counts(sentences, bidirectional, read)


@wrong("ch12.lowest_loss", "the order of the context is lost")
def bag(sentences, bidirectional):
    def read(row, i):
        return tuple(sorted(row[:i])), tuple(sorted(row[i + 1 :])) if bidirectional else ()

    if bidirectional:
        return from_counts(sentences, True, lambda row, i: tuple(sorted(row[:i] + row[i + 1 :])))
    return from_counts(sentences, False, read)


@wrong("ch12.lowest_loss", "float32")
def narrow(sentences, bidirectional):
    return by_counting(sentences, bidirectional).float()


# --- The loss -------------------------------------------------------------------------------------


@right("ch12.masked_loss")
def by_torch(logits, labels):
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


@right("ch12.masked_loss")
def by_one_hot(logits, labels):
    chosen = (labels != -100).to(logits.dtype)
    targets = functional.one_hot(labels.clamp(min=0), logits.shape[-1]).to(logits.dtype)
    log_p = logits.log_softmax(-1)
    return -((log_p * targets).sum(-1) * chosen).sum() / chosen.sum()


@wrong("ch12.masked_loss", "the sum")
def summed(logits, labels):
    return functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum"
    )


@wrong("ch12.masked_loss", "detached")
def detached(logits, labels):
    return by_torch(logits.detach(), labels)


@wrong("ch12.masked_loss", "bits")
def in_bits(logits, labels):
    return by_torch(logits, labels) / torch.log(torch.tensor(2.0, dtype=logits.dtype))


# --- Masking tokens -------------------------------------------------------------------------------


def chosen_like(scores, special, rate):
    rank = scores.masked_fill(special, 2.0).argsort(1).argsort(1)
    free = (~special).sum(1, keepdim=True)
    return rank < (rate * free.double()).round().clamp(min=1).minimum(free)


@right("ch12.mask_tokens")
def by_ranks(ids, special, generator, *, mask_id, vocab_size, rate=0.15):
    chosen = chosen_like(torch.rand(ids.shape, generator=generator), special, rate)
    kind = torch.rand(ids.shape, generator=generator)
    drawn = torch.randint(vocab_size, ids.shape, generator=generator)
    inputs = torch.where(kind < 0.8, mask_id, torch.where(kind < 0.9, drawn, ids))
    return torch.where(chosen, inputs, ids), torch.where(chosen, ids, -100)


@wrong("ch12.mask_tokens", "the first tokens of each text")
def the_first(ids, special, generator, *, mask_id, vocab_size, rate=0.15):
    scores = torch.arange(ids.shape[1]).expand(ids.shape) / (ids.shape[1] + 1)
    chosen = chosen_like(scores, special, rate)
    kind = torch.rand(ids.shape, generator=generator)
    drawn = torch.randint(vocab_size, ids.shape, generator=generator)
    inputs = torch.where(kind < 0.8, mask_id, torch.where(kind < 0.9, drawn, ids))
    return torch.where(chosen, inputs, ids), torch.where(chosen, ids, -100)


@wrong("ch12.mask_tokens", "one random token for the whole batch")
def one_random_token(ids, special, generator, *, mask_id, vocab_size, rate=0.15):
    chosen = chosen_like(torch.rand(ids.shape, generator=generator), special, rate)
    kind = torch.rand(ids.shape, generator=generator)
    drawn = torch.randint(vocab_size, (1, 1), generator=generator)
    inputs = torch.where(kind < 0.8, mask_id, torch.where(kind < 0.9, drawn, ids))
    return torch.where(chosen, inputs, ids), torch.where(chosen, ids, -100)
