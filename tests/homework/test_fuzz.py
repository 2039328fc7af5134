"""A few mutated submissions of the fuzz run: `benchmarks/grading_fuzz.py` tries hundreds."""

import sys
from dataclasses import replace

import pytest
from course import ROOT

from tested_transformer.homework.marking.marks import PartMarks
from tested_transformer.homework.submissions.by_question import Found

sys.path.insert(0, str(ROOT / "benchmarks"))
import grading_fuzz

pytestmark = pytest.mark.plain_types
WRONG = PartMarks(0.0, 4, "wrong")


@pytest.mark.parametrize("number", range(1, 9))  # none of them in a jail
def test_a_mutated_submission_is_marked_and_rightly(number, tmp_path, monkeypatch):
    monkeypatch.setattr(grading_fuzz.mark_submission, "JailSession", grading_fuzz.InProcess)
    row = grading_fuzz.try_one(number, 7, tmp_path)
    assert not row["problem"], row


def test_what_the_run_must_find_is_a_problem(tmp_path, monkeypatch):
    """Words that nobody finds, time without a bound, and full marks that another seed does not give."""
    module = grading_fuzz.mark_submission
    monkeypatch.setattr(module, "JailSession", grading_fuzz.InProcess)
    right = next(
        n for n in range(1, 99) if grading_fuzz.try_one(n, 7, tmp_path)["verdict"] == "right"
    )
    with monkeypatch.context() as patch:
        patch.setattr(module, "_found", lambda *_: Found({}, {}))
        assert "words were lost" in grading_fuzz.try_one(right, 7, tmp_path)["problem"]
    with monkeypatch.context() as patch:
        patch.setattr(grading_fuzz, "MOST_SECONDS", 0.0)
        assert grading_fuzz.try_one(right, 7, tmp_path)["problem"].endswith(" seconds")
    mark = module.mark

    def by_seed(*given, seed, **named):
        marks = mark(*given, seed=seed, **named)
        return replace(marks, parts=dict.fromkeys(marks.parts, WRONG)) if seed > 20_000 else marks

    monkeypatch.setattr(module, "mark", by_seed)
    assert "full marks, and at seed 2" in grading_fuzz.try_one(right, 7, tmp_path)["problem"]
