"""Exercises of chapter 1: right answers pass, famous wrong ones are named."""

import pytest
import torch

from tested_transformer import check
from tested_transformer.exercises import ch01


def weights(query, key):
    return ((key @ query) / len(query) ** 0.5).softmax(-1)


def attention(query, key, value):
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value


def self_attention(x, w_query, w_key, w_value):
    return attention(x @ w_query, x @ w_key, x @ w_value)


def look_right(length):
    """The shift in the keys: key j + 1 is what query j asks for."""
    w_key = torch.zeros(length, length)
    for position in range(length - 1):
        w_key[position + 1, position] = 50.0
    return torch.eye(length), w_key


def same_bag(number):
    first, middle, last = str(number)
    return int(last + middle + first)


SOLUTIONS = {
    "ch01.weights": weights,
    "ch01.attention": attention,
    "ch01.self_attention": self_attention,
    "ch01.look_right": look_right,
    "ch01.same_bag": same_bag,
}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda length: torch.eye(length), "a pair"),
        (lambda length: (torch.eye(length), torch.ones(length, 2)), "two matrices of shape"),
        (lambda length: (torch.ones(3), torch.ones(3)), "two matrices of shape"),
    ],
)
def test_look_right_says_what_it_wants(answer, words):
    verdict = check("ch01.look_right", answer)
    assert not verdict.passed
    assert words in verdict.problem.got


@pytest.mark.parametrize("answer", ["302", 302.0, True, 1203, 213])
def test_same_bag_says_what_it_wants(answer):
    verdict = check("ch01.same_bag", lambda number: answer)
    assert not verdict.passed
    assert "expected" in verdict.problem.got


def test_the_morphemes_of_numbers():
    assert ch01.morphemes(420) == ["vier", "hundert", "zwanzig"]
    assert ch01.morphemes(800) == ["acht", "hundert"]
    assert " ".join(ch01.morphemes(986)) == "neun hundert sechs und achtzig"
