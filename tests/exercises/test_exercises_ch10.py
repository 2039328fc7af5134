"""The exercises of chapter 10: a right answer passes, the usual mistakes are named."""

import math

import pytest
import torch
from torch import nn

from tested_transformer import check
from tested_transformer.training.losses import cross_entropy
from tested_transformer.training.schedules import paper_rate

BOS, EOS = 1, 2


def shift_right(sentences):
    wide = max(len(words) for words in sentences) + 1
    whole = torch.zeros(len(sentences), wide + 1, dtype=torch.long)
    for row, words in zip(whole, sentences, strict=True):
        row[: len(words) + 2] = torch.tensor([BOS, *words, EOS])
    return whole[:, :-1], whole[:, 1:]


def lowest_loss(vocab, smoothing):
    other = smoothing / vocab
    right = 1 - smoothing + other
    return -right * math.log(right) - (vocab - 1) * other * math.log(other)


def peak(d_model, warmup):
    return warmup, 1 / math.sqrt(d_model * warmup), 4 * warmup


def combine(gradients, words):
    share = words / words.sum()
    return share.to(gradients.dtype) @ gradients


def clip(gradients, limit):
    length = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
    share = limit / length if length > limit else 1.0
    return [gradient * share for gradient in gradients]


def exact_match(said, expected):
    right = 0
    for mine, theirs in zip(said.tolist(), expected.tolist(), strict=True):
        wanted = theirs[: theirs.index(EOS) + 1]
        right += mine[: len(wanted)] == wanted
    return right / len(expected)


SOLUTIONS = {
    "ch10.shift_right": shift_right,
    "ch10.lowest_loss": lowest_loss,
    "ch10.peak": peak,
    "ch10.combine": combine,
    "ch10.clip": clip,
    "ch10.exact_match": exact_match,
}


def test_no_model_gets_below_the_lowest_loss():
    logits = torch.zeros(1, 34, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=100, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        value = cross_entropy(logits, torch.tensor([5]), label_smoothing=0.1)
        value.backward()
        return value

    optimizer.step(loss)
    assert loss().item() == pytest.approx(lowest_loss(34, 0.1), abs=1e-9)
    assert lowest_loss(34, 0.1) == pytest.approx(0.66, abs=0.005)  # what the exercise says


@pytest.mark.parametrize(("d_model", "warmup"), [(512, 4000), (128, 90)])
def test_the_peak_is_that_of_the_package(d_model, warmup):
    rates = [paper_rate(step, d_model=d_model, warmup=warmup) for step in range(1, 5 * warmup)]
    step, rate, half = peak(d_model, warmup)
    assert rates.index(max(rates)) + 1 == step
    assert max(rates) == pytest.approx(rate)
    assert rates[half - 1] == pytest.approx(rate / 2)


def test_clipping_as_torch_does_it_passes():
    def as_torch(gradients, limit):
        parameters = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        nn.utils.clip_grad_norm_(parameters, limit)
        return [parameter.grad for parameter in parameters]

    assert check("ch10.clip", as_torch).passed


def test_shifting_may_pad_before_it_cuts():
    """Then EOS is read, in short sentences, where nothing is to be said."""
    target, expected = shift_right([[4, 5], [6]])
    assert target[1].tolist() == [BOS, 6, EOS]
    assert expected[1].tolist() == [6, EOS, 0]
    assert check("ch10.shift_right", shift_right).passed


@pytest.mark.parametrize("filler", [EOS, 0])
def test_what_is_read_after_the_last_word_may_be_the_end_or_padding(filler):
    def filled(sentences):
        target, expected = shift_right(sentences)
        return target.masked_fill(expected == 0, filler), expected

    assert check("ch10.shift_right", filled).passed
