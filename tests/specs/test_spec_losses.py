"""The Spec of the loss: what it accepts, and that the symptoms it tells of are true."""

import math

import pytest
import torch
from torch.nn import functional

from tested_transformer.specs.judge import judge
from tested_transformer.specs.losses.mutants import (
    after_softmax,
    log_with_eps,
    over_padding,
    right_word_short,
    without_maximum,
    wrong_words_only,
)
from tested_transformer.specs.losses.spec import CROSS_ENTROPY
from tested_transformer.training.losses import cross_entropy


def of_torch(logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean"):
    """torch's mean of no words is 0 / 0."""
    total = functional.cross_entropy(
        logits.flatten(0, -2), expected.flatten(), ignore_index=ignore,
        label_smoothing=label_smoothing, reduction="sum",
    )  # fmt: skip
    return total if reduction == "sum" else total / (expected != ignore).sum().clamp(min=1)


def by_targets(logits, expected, *, ignore=0, label_smoothing=0.0, reduction="mean"):
    """The divergence from the smoothed target, and the target's entropy on top."""
    logits, expected = logits[expected != ignore], expected[expected != ignore]
    vocab = logits.shape[-1]
    right = functional.one_hot(expected, vocab).to(logits.dtype)
    target = right * (1 - label_smoothing) + label_smoothing / vocab
    divergence = functional.kl_div(logits.log_softmax(-1), target, reduction="sum")
    total = divergence + torch.special.entr(target).sum()
    return total if reduction == "sum" else total / max(len(expected), 1)


RIGHT = {"the package's": cross_entropy, "torch's": of_torch, "by targets": by_targets}


@pytest.mark.parametrize("right", RIGHT.values(), ids=RIGHT)
def test_right_implementations_pass(right):
    verdict = judge(CROSS_ENTROPY, right)
    assert verdict.passed, verdict
    assert dict(verdict.skipped) == {}


def test_without_smoothing_its_checks_are_left_out():
    def plain(logits, expected, *, ignore=0, reduction="mean"):
        return of_torch(logits, expected, ignore=ignore, reduction=reduction)

    verdict = judge(CROSS_ENTROPY, plain)
    assert verdict.passed
    assert list(verdict.skipped) == ["lowest at the smoothed target"]


def test_a_softmax_too_many_has_a_floor():
    """0.905 for five classes: the source notes' model cannot get below."""
    sure = 1e3 * torch.eye(5)
    floor = math.log(math.e + 4) - 1
    assert after_softmax(sure, torch.arange(5), ignore=-1).item() == pytest.approx(floor, abs=1e-6)
    assert floor == pytest.approx(0.905, abs=5e-4)


def test_the_symptoms():
    word = torch.tensor([[1]])
    assert without_maximum(torch.tensor([[[0.0, 89.0]]]), word).isnan()
    assert without_maximum(torch.tensor([[[0.0, 88.0]]]), word).isfinite()
    hopeless = torch.tensor([[[9e3, 0.0]]], dtype=torch.float64)
    assert log_with_eps(hopeless, word).item() == pytest.approx(27.6, abs=0.05)
    padded = torch.tensor([[1, 0, 0, 0]])
    writes_padding = torch.tensor([[0.0, 0.0], [9.0, 0], [9.0, 0], [9.0, 0]])[None]
    assert over_padding(writes_padding, padded) < cross_entropy(writes_padding, padded) / 3.9
    halves = [wrong_words_only(torch.tensor([[[x, 0.0]]]), word, label_smoothing=0.5) for x in (0.0, 1.0)]  # fmt: skip
    assert halves[0] < halves[1]
    short = right_word_short(torch.zeros(1, 1, 4), word, label_smoothing=0.4)
    assert short.item() == pytest.approx((1 - 0.4 / 4) * math.log(4))
