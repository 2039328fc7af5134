"""What is special to the exercises of chapter 2."""

import pytest
import torch

from tested_transformer import check


@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        ("ch02.gaussian_features", lambda q, k, b: q, "return two tensors"),
        ("ch02.gaussian_features", lambda q, k, b: (q, torch.cat([k, k], -1)), "no dot product"),
        ("ch02.split", lambda w, rank: w, "return two tensors"),
        ("ch02.split", lambda w, rank: (w.T, w), "rows each"),
    ],
)
def test_an_answer_of_the_wrong_form_is_told_so(name, wrong, words):
    verdict = check(name, wrong)
    assert not verdict.passed
    assert words in verdict.problem.got
