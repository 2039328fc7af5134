"""The answers to homework 7."""

import itertools

import numpy as np
import torch

from tested_transformer.homework.assignments.hw07 import parameters

from . import right, wrong

# --- reads ----------------------------------------------------------------------------------------


@right("hw07.reads")
def reads_by_where(said, bos, eos, pad):
    before = torch.nn.functional.pad(said, (1, 0), value=eos)[:, :-1]
    before = torch.where(before == eos, bos, before)
    return torch.where(said == pad, pad, before)


@right("hw07.reads")
def reads_in_lists(said, bos, eos, pad):
    rows = []
    for row in said.tolist():
        shifted = [bos if word == eos else word for word in [eos, *row[:-1]]]
        rows.append([pad if here == pad else word for here, word in zip(row, shifted, strict=True)])
    return torch.tensor(rows)


@right("hw07.reads")
def reads_in_numpy(said, bos, eos, pad):
    said = said.numpy()
    before = np.roll(said, 1, 1)
    before[:, 0] = eos
    before[before == eos] = bos
    before[said == pad] = pad
    return before


@wrong("hw07.reads", "BOS after every pad too")
def reads_bos_in_padding(said, bos, eos, pad):
    found = reads_by_where(said, bos, eos, pad)
    before = torch.nn.functional.pad(said, (1, 0), value=pad)[:, :-1]
    return torch.where((before == eos) & (said == pad), bos, found)


@wrong("hw07.reads", "in place")
def reads_in_place(said, bos, eos, pad):
    said.copy_(reads_by_where(said, bos, eos, pad))
    return said


@wrong("hw07.reads", "EOS read along")
def reads_eos(said, bos, eos, pad):
    return torch.where(said == eos, eos, reads_by_where(said, bos, eos, pad))


@wrong("hw07.reads", "the last word lost")
def reads_short(said, bos, eos, pad):
    return reads_by_where(said, bos, eos, pad)[:, :-1]


# --- widest ---------------------------------------------------------------------------------------


def root_of(budget, vocab, layers):
    """The real width at which the budget is used up."""
    a, b = 28 * layers, 32 * layers + vocab
    return (-b + (b * b + 4 * a * budget) ** 0.5) / (2 * a)


@right("hw07.widest")
def widest_by_the_root(budget, vocab, layers, multiple):
    width = (int(root_of(budget, vocab, layers)) // multiple + 1) * multiple
    while width > 0 and parameters(vocab, width, layers) > budget:
        width -= multiple
    return width


@right("hw07.widest")
def widest_by_halving(budget, vocab, layers, multiple):
    low, high = 0, 1
    while parameters(vocab, high * multiple, layers) <= budget:
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        fits = parameters(vocab, middle * multiple, layers) <= budget
        low, high = (middle, high) if fits else (low, middle)
    return np.int64(low * multiple)


@right("hw07.widest")
def widest_by_counting(budget, vocab, layers, multiple):
    for width in itertools.count(multiple, multiple):
        if width * (layers * (28 * width + 32) + vocab) > budget:
            return torch.tensor(width - multiple)


@wrong("hw07.widest", "the root as it is")
def widest_unrounded(budget, vocab, layers, multiple):
    return int(root_of(budget, vocab, layers))


@wrong("hw07.widest", "norms after the stacks counted")
def widest_final_norms(budget, vocab, layers, multiple):
    return widest_by_counting(budget - 0, vocab + 4, layers, multiple).item()


@wrong("hw07.widest", "at least one multiple")
def widest_at_least_one(budget, vocab, layers, multiple):
    return max(multiple, widest_by_the_root(budget, vocab, layers, multiple))


@wrong("hw07.widest", "one table for each language")
def widest_two_tables(budget, vocab, layers, multiple):
    return widest_by_the_root(budget, 2 * vocab, layers, multiple)


# --- score_gradient -------------------------------------------------------------------------------


@right("hw07.score_gradient")
def gradient_by_logarithms(logits, answers, smoothing, pad):
    real = answers != pad
    words = answers.masked_fill(~real, 0)
    pull = (logits - logits.logsumexp(-1, keepdim=True)).exp() - smoothing / logits.shape[-1]
    pull = pull.scatter_add(-1, words[..., None], torch.full_like(pull[..., :1], smoothing - 1))
    return torch.where(real[..., None], pull, 0.0) / real.sum().clamp(min=1)


@right("hw07.score_gradient")
def gradient_place_by_place(logits, answers, smoothing, pad):
    found, words = torch.zeros_like(logits), int((answers != pad).sum())
    for b, i in np.ndindex(*answers.shape):
        if answers[b, i] == pad:
            continue
        target = torch.full_like(logits[b, i], smoothing / logits.shape[-1])
        target[answers[b, i]] += 1 - smoothing
        found[b, i] = (torch.softmax(logits[b, i], 0) - target) / words
    return found


@right("hw07.score_gradient")
def gradient_in_numpy(logits, answers, smoothing, pad):
    logits, answers = logits.double().numpy(), answers.numpy()
    raised = np.exp(logits - logits.max(-1, keepdims=True))
    target = (np.arange(logits.shape[-1]) == answers[..., None]) * (1 - smoothing)
    pull = raised / raised.sum(-1, keepdims=True) - target - smoothing / logits.shape[-1]
    return pull * (answers != pad)[..., None] / max(1, (answers != pad).sum())


@right("hw07.score_gradient")
@torch.no_grad()
def gradient_with_one_hot(logits, answers, smoothing, pad):
    real = answers != pad
    right_one = torch.nn.functional.one_hot(answers * real, logits.shape[-1]).to(logits)
    target = right_one.lerp(torch.full_like(logits, 1 / logits.shape[-1]), smoothing)
    return (logits.log_softmax(-1).exp() - target) * real[..., None] / real.sum().clamp(min=1)


@wrong("hw07.score_gradient", "scores clamped at 50")
def gradient_clamped(logits, answers, smoothing, pad):
    return gradient_place_by_place(logits.clamp(-50, 50), answers, smoothing, pad)


@wrong("hw07.score_gradient", "the padding's own score pulled to 0")
def gradient_without_pad_word(logits, answers, smoothing, pad):
    found = gradient_place_by_place(logits, answers, smoothing, pad)
    if 0 <= pad < logits.shape[-1]:
        found[..., pad] = 0
    return found


@wrong("hw07.score_gradient", "padding is 0")
def gradient_pad_0(logits, answers, smoothing, pad):
    return gradient_place_by_place(logits, answers.clamp(min=0), smoothing, 0)


@wrong("hw07.score_gradient", "NaN without any word")
def gradient_nan(logits, answers, smoothing, pad):
    found = gradient_place_by_place(logits, answers, smoothing, pad)
    return found * (answers != pad).any() / (answers != pad).any()


@wrong("hw07.score_gradient", "in float32")
def gradient_single(logits, answers, smoothing, pad):
    return gradient_place_by_place(logits.float(), answers, smoothing, pad).to(logits.dtype)


@wrong("hw07.score_gradient", "smoothing ignored")
def gradient_unsmoothed(logits, answers, smoothing, pad):
    return gradient_place_by_place(logits, answers, 0.0, pad)


# --- fewest_pads ----------------------------------------------------------------------------------


def pads(batch):
    return max(batch) * len(batch) - sum(batch)


@right("hw07.fewest_pads")
def fewest_by_tables(lengths, num_batches):
    ordered = sorted(lengths)
    size = len(ordered)
    best = [0] + [float("inf")] * size
    for _ in range(min(num_batches, size)):
        step = best[:]
        for end in range(1, size + 1):
            for start in range(end):
                step[end] = min(step[end], best[start] + pads(ordered[start:end]))
        best = step
    return best[size]


@right("hw07.fewest_pads")
def fewest_in_numpy(lengths, num_batches):
    ordered = np.sort(lengths)
    sums = np.concatenate([[0], np.cumsum(ordered)])
    size = len(ordered)
    cost = np.full((size + 1, size + 1), 10**9)
    for start, end in itertools.combinations(range(size + 1), 2):
        cost[start, end] = ordered[end - 1] * (end - start) - (sums[end] - sums[start])
    np.fill_diagonal(cost, 0)
    best = cost[0]
    for _ in range(num_batches - 1):
        best = (best[:, None] + cost).min(0)
    return best[size]


@right("hw07.fewest_pads")
def fewest_from_the_longest(lengths, num_batches):
    ordered = tuple(sorted(lengths, reverse=True))
    known = {}

    def best(start, left):
        if start == len(ordered):
            return 0
        if left == 0:
            return 10**9
        if (start, left) not in known:
            known[start, left] = min(
                pads(ordered[start:end]) + best(end, left - 1)
                for end in range(start + 1, len(ordered) + 1)
            )
        return known[start, left]

    return torch.tensor(best(0, num_batches))


@wrong("hw07.fewest_pads", "batches by the tens of the lengths")
def fewest_by_tens(lengths, num_batches):
    ordered = sorted(lengths)
    edges = np.array_split(ordered, min(num_batches, len(ordered)))
    return int(sum(pads(list(batch)) for batch in edges if len(batch)))


@wrong("hw07.fewest_pads", "one batch too many")
def fewest_one_more(lengths, num_batches):
    return fewest_by_tables(lengths, num_batches + 1)


@wrong("hw07.fewest_pads", "a float")
def fewest_as_a_float(lengths, num_batches):
    return float(fewest_by_tables(lengths, num_batches))


@wrong("hw07.fewest_pads", "twenty sentences at most")
def fewest_of_twenty(lengths, num_batches):
    return fewest_by_tables(lengths[:20], num_batches)
