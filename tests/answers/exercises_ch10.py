"""The answers to the exercises of chapter 10; shift_right stands with teacher forcing."""

import math

import torch
from torch import nn
from torch.nn import functional

from tested_transformer.training.schedules import paper_rate

from . import right, wrong

EOS, PAD = 2, 0

# --- The lowest loss ------------------------------------------------------------------------------


@right("ch10.lowest_loss")
def by_torch(vocab, smoothing):
    """The loss where the logits are the logarithms of the target."""
    target = torch.full((vocab,), smoothing / vocab, dtype=torch.float64)
    target[0] += 1 - smoothing
    return functional.cross_entropy(target.log()[None], target[None])


@right("ch10.lowest_loss")
def entropy(vocab, smoothing):
    target = [smoothing / vocab] * (vocab - 1) + [1 - smoothing + smoothing / vocab]
    return sum(-p * math.log(p) for p in target)


@right("ch10.lowest_loss")
def from_log_v(vocab, smoothing):
    """log V less the divergence from even chances."""
    other, one = smoothing / vocab, 1 - smoothing + smoothing / vocab
    return math.log(vocab) - one * math.log(one * vocab) - (vocab - 1) * other * math.log(smoothing)


@wrong("ch10.lowest_loss", "e is at most one half")
def at_most_half(vocab, smoothing):
    return entropy(vocab, min(smoothing, 0.5))


@wrong("ch10.lowest_loss", "in bits")
def in_bits(vocab, smoothing):
    return entropy(vocab, smoothing) / math.log(2)


@wrong("ch10.lowest_loss", "a vocabulary of 1,000 at most")
def small_vocabulary(vocab, smoothing):
    return entropy(min(vocab, 1000), smoothing)


@wrong("ch10.lowest_loss", "V words beside the right one")
def one_too_many(vocab, smoothing):
    return entropy(vocab, smoothing) - smoothing / vocab * math.log(smoothing / vocab)


@wrong("ch10.lowest_loss", "a small number inside the logarithm")
def with_eps(vocab, smoothing):
    other, one = smoothing / vocab, 1 - smoothing + smoothing / vocab
    return -one * math.log(one + 1e-9) - (vocab - 1) * other * math.log(other + 1e-9)


@wrong("ch10.lowest_loss", "in float32")
def lowest_in_float32(vocab, smoothing):
    return torch.tensor(entropy(vocab, smoothing), dtype=torch.float32).item()


# --- The peak -------------------------------------------------------------------------------------


@right("ch10.peak")
def by_search(d_model, warmup):
    rates = [paper_rate(step, d_model=d_model, warmup=warmup) for step in range(1, 4 * warmup + 9)]
    best = max(rates)
    step = rates.index(best) + 1
    half = next(n for n in range(step, len(rates)) if rates[n - 1] <= best / 2 * (1 + 1e-12))
    return step, best, half


@right("ch10.peak")
def in_tensors(d_model, warmup):
    warmup = torch.tensor(warmup, dtype=torch.float64)
    return warmup, 1 / (warmup.sqrt() * math.sqrt(d_model)), 4 * warmup


@right("ch10.peak")
def by_powers(d_model, warmup):
    return float(warmup), d_model**-0.5 * warmup * warmup**-1.5, 2**2 * float(warmup)


@wrong("ch10.peak", "searched among 1,000 steps")
def searched_too_little(d_model, warmup):
    steps = range(1, 1001)
    best = max(steps, key=lambda step: paper_rate(step, d_model=d_model, warmup=warmup))
    return best, paper_rate(best, d_model=d_model, warmup=warmup), 4 * best


@wrong("ch10.peak", "the step after the warm-up")
def one_step_late(d_model, warmup):
    return warmup + 1, paper_rate(warmup + 1, d_model=d_model, warmup=warmup), 4 * (warmup + 1)


@wrong("ch10.peak", "half a quarter of the rate")
def at_a_quarter(d_model, warmup):
    return warmup, (d_model * warmup) ** -0.5, 16 * warmup


@wrong("ch10.peak", "rounded to three digits")
def rounded(d_model, warmup):
    return warmup, round((d_model * warmup) ** -0.5, 3), 4 * warmup


@wrong("ch10.peak", "a warm-up of at least 2")
def at_least_two(d_model, warmup):
    warmup = max(warmup, 2)
    return warmup, (d_model * warmup) ** -0.5, 4 * warmup


# --- Several batches ------------------------------------------------------------------------------


@right("ch10.combine")
def by_shares(gradients, words):
    """Whole numbers divided by whole numbers: float32."""
    return (words / words.sum()).to(gradients.dtype) @ gradients


@right("ch10.combine")
def by_einsum(gradients, words):
    return torch.einsum("kn,k->n", gradients, words.to(gradients.dtype)) / words.sum()


@right("ch10.combine")
def in_a_loop(gradients, words):
    total = torch.zeros_like(gradients[0])
    for gradient, count in zip(gradients, words.tolist(), strict=True):
        total = total + gradient * count
    return total / sum(words.tolist())


@right("ch10.combine")
def repeated(gradients, words):
    return gradients.repeat_interleave(words, dim=0).mean(0)


@wrong("ch10.combine", "the first three batches")
def first_three(gradients, words):
    return by_einsum(gradients[:3], words[:3])


@wrong("ch10.combine", "weighted by the root of the words")
def by_roots(gradients, words):
    weights = words.to(gradients.dtype).sqrt()
    return weights @ gradients / weights.sum()


@wrong("ch10.combine", "words in 8 bits")
def in_8_bits(gradients, words):
    return by_einsum(gradients, words.to(torch.int8))


@wrong("ch10.combine", "in bfloat16")
def in_bfloat16(gradients, words):
    return by_einsum(gradients.bfloat16(), words).to(gradients.dtype)


@wrong("ch10.combine", "the caller's gradients are multiplied")
def in_place(gradients, words):
    return gradients.mul_(words[:, None]).sum(0) / words.sum()


@wrong("ch10.combine", "one axis too many")
def keeps_an_axis(gradients, words):
    return (gradients * words[:, None]).sum(0, keepdim=True) / words.sum()


# --- Clipping -------------------------------------------------------------------------------------


@right("ch10.clip")
def as_torch(gradients, limit):
    parameters = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    nn.utils.clip_grad_norm_(parameters, limit)
    return [parameter.grad for parameter in parameters]


@right("ch10.clip")
def norm_of_norms(gradients, limit):
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    return [gradient / torch.clamp(norm / limit, min=1.0) for gradient in gradients]


@right("ch10.clip")
def number_by_number(gradients, limit):
    square = sum(
        number * number for gradient in gradients for number in gradient.flatten().tolist()
    )
    factor = 1.0 if square <= limit**2 else limit / math.sqrt(square)
    return tuple(factor * gradient for gradient in gradients)


@right("ch10.clip")
def normalized(gradients, limit):
    """The direction, and its length."""
    whole = torch.cat([gradient.reshape(-1) for gradient in gradients])
    length = torch.linalg.vector_norm(whole)
    clipped = whole if length <= limit else functional.normalize(whole, dim=0) * limit
    parts = clipped.split([gradient.numel() for gradient in gradients])
    return [part.view_as(gradient) for part, gradient in zip(parts, gradients, strict=True)]


@wrong("ch10.clip", "the norm without the last tensor")
def last_left_out(gradients, limit):
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients[:-1]))
    return [gradient * min(1.0, limit / max(norm, 1e-12)) for gradient in gradients]


@wrong("ch10.clip", "NaN for nothing at all")
def nan_for_zero(gradients, limit):
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    return [gradient / norm * torch.clamp(norm, max=limit) for gradient in gradients]


@wrong("ch10.clip", "1 is added to the norm")
def norm_plus_one(gradients, limit):
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    return [gradient * (limit / (norm + 1)).clamp(max=1) for gradient in gradients]


@wrong("ch10.clip", "the sum of absolute values")
def sum_of_values(gradients, limit):
    norm = sum(float(gradient.abs().sum()) for gradient in gradients)
    return [gradient * min(1.0, limit / max(norm, 1e-12)) for gradient in gradients]


@wrong("ch10.clip", "limits below 1e-3 are not taken seriously")
def at_least_a_thousandth(gradients, limit):
    return number_by_number(gradients, max(limit, 1e-3))


@wrong("ch10.clip", "a longer list")
def longer_list(gradients, limit):
    return [*number_by_number(gradients, limit), torch.zeros(1)]


# --- Exact match ----------------------------------------------------------------------------------


@right("ch10.exact_match")
def by_lists(said, expected):
    def sentence(row):
        return row[: row.index(EOS) + 1] if EOS in row else [*row, "..."]

    pairs = list(zip(said.tolist(), expected.tolist(), strict=True))
    return sum(sentence(a) == sentence(b) for a, b in pairs) / len(pairs)


@right("ch10.exact_match")
def in_float32(said, expected):
    """What stands after the end becomes padding; the mean is float32."""
    wide = max(said.shape[1], expected.shape[1])
    said, expected = (functional.pad(t, (0, wide - t.shape[1])) for t in (said, expected))
    ended = (said == EOS).cumsum(1) - (said == EOS).int() > 0
    return (said.masked_fill(ended, PAD) == expected).all(1).float().mean()


@right("ch10.exact_match")
def by_the_end(said, expected):
    ends = (expected == EOS).int().argmax(1)
    same = [
        len(a) > end and torch.equal(a[: end + 1], b[: end + 1])
        for a, b, end in zip(said, expected, ends.tolist(), strict=True)
    ]
    return torch.tensor(same, dtype=torch.float64).mean()


@wrong("ch10.exact_match", "50 words are compared")
def fifty_words(said, expected):
    said, expected = said.clone(), expected.clone()
    return by_lists(said[:, :50], expected[:, :50]) if said.shape[1] < 50 else in_float32(
        torch.cat([said[:, :50], torch.full_like(said[:, :1], EOS)], 1),
        torch.cat([expected[:, :50], torch.full_like(expected[:, :1], EOS)], 1),
    )  # fmt: skip


@wrong("ch10.exact_match", "the sums of the words are compared")
def by_sums(said, expected):
    wide = max(said.shape[1], expected.shape[1])
    said, expected = (functional.pad(t, (0, wide - t.shape[1])) for t in (said, expected))
    ended = (said == EOS).cumsum(1) - (said == EOS).int() > 0
    return (said.masked_fill(ended, PAD).sum(1) == expected.sum(1)).double().mean()


@wrong("ch10.exact_match", "the first and the last word are compared")
def both_ends(said, expected):
    pairs = [(a[: a.index(EOS)], b[: b.index(EOS)])
             for a, b in zip(said.tolist(), expected.tolist(), strict=True) if EOS in a]  # fmt: skip
    same = [len(a) == len(b) and a[:1] == b[:1] and a[-1:] == b[-1:] for a, b in pairs]
    return sum(same) / len(said)


@wrong("ch10.exact_match", "the last word is not compared")
def last_left_open(said, expected):
    pairs = [(a[: a.index(EOS)], b[: b.index(EOS)])
             for a, b in zip(said.tolist(), expected.tolist(), strict=True) if EOS in a]  # fmt: skip
    return sum(len(a) == len(b) and a[:-1] == b[:-1] for a, b in pairs) / len(said)


@wrong("ch10.exact_match", "words as a set")
def as_sets(said, expected):
    def words(row):
        return set(row[: row.index(EOS) + 1]) if EOS in row else None

    pairs = zip(said.tolist(), expected.tolist(), strict=True)
    return sum(words(a) == words(b) for a, b in pairs) / len(said)


@wrong("ch10.exact_match", "an empty sentence is always right")
def empty_is_right(said, expected):
    pairs = zip(said.tolist(), expected.tolist(), strict=True)
    same = [b[0] == EOS or a[: b.index(EOS) + 1] == b[: b.index(EOS) + 1] for a, b in pairs]
    return sum(same) / len(said)


@wrong("ch10.exact_match", "words in 16 bits")
def in_16_bits(said, expected):
    return in_float32((said // 2**17).to(torch.int16) + said.clamp(max=13),
                      (expected // 2**17).to(torch.int16) + expected.clamp(max=13))  # fmt: skip


@wrong("ch10.exact_match", "wrong ones counted")
def errors(said, expected):
    return 1 - by_lists(said, expected)
