"""The exercises of chapter 3: a right answer passes, each typical mistake is rejected and named."""

import math

import torch

from tested_transformer import check


def softmax(scores):
    if scores.shape[-1] == 0:
        return scores
    shifted = scores - scores.amax(-1, keepdim=True)
    return shifted.exp() / shifted.exp().sum(-1, keepdim=True)


def softmax_backward(weights, gradient):
    product = weights * gradient
    return product - weights * product.sum(-1, keepdim=True)


def score_gap(weight, num_keys):
    return torch.log(weight) - torch.log(1 - weight) + math.log(num_keys - 1)


def scaled_scores(query, key):
    return (query / math.sqrt(query.shape[-1])) @ key.transpose(-2, -1)


def fold(weight, bias, num_heads):
    scale = (weight.shape[1] // num_heads) ** -0.5
    return weight * scale, bias * scale


def temperature(scores, target):
    def seen(divisor):
        weights = torch.softmax(scores / divisor, 0)
        return math.exp(-sum(p * math.log(p) for p in weights.tolist() if p > 0))

    low = high = 1.0
    while seen(low) >= target:
        low /= 4
    while seen(high) <= target:
        high *= 4
    while high / low > 1 + 1e-9:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if seen(middle) < target else (low, middle)
    return torch.tensor(low)


SOLUTIONS = {
    "ch03.softmax": softmax,
    "ch03.softmax_backward": softmax_backward,
    "ch03.score_gap": score_gap,
    "ch03.scaled_scores": scaled_scores,
    "ch03.fold": fold,
    "ch03.temperature": temperature,
}


def test_unreadable_answers():
    verdict = check("ch03.fold", lambda weight, bias, num_heads: weight)
    assert not verdict.passed
    assert "two tensors" in repr(verdict)
    verdict = check("ch03.temperature", lambda scores, target: -1.0)
    assert not verdict.passed
    assert "above 0" in repr(verdict)
