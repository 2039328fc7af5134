"""What is special to the exercises of chapter 1."""

import pytest
import torch

from tested_transformer import check
from tested_transformer.exercises import ch01


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
