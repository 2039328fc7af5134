"""What is special to the exercises of chapter 3."""

from tested_transformer import check


def test_unreadable_answers():
    verdict = check("ch03.fold", lambda weight, bias, num_heads: weight)
    assert not verdict.passed
    assert "two tensors" in repr(verdict)
    verdict = check("ch03.temperature", lambda scores, target: -1.0)
    assert not verdict.passed
    assert "above 0" in repr(verdict)
