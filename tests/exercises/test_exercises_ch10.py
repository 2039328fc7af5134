"""What is special to the exercises of chapter 10."""

import pytest
import torch
from torch import nn

from solutions import chapter_solutions
from tested_transformer import check
from tested_transformer.training.losses import cross_entropy
from tested_transformer.training.schedules import paper_rate

SOLUTIONS = chapter_solutions()
shift_right = SOLUTIONS["ch10.shift_right"]
lowest_loss = SOLUTIONS["ch10.lowest_loss"]
peak = SOLUTIONS["ch10.peak"]

BOS, EOS = 1, 2


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
