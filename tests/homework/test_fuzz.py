"""A few mutated submissions of the fuzz run: `benchmarks/grading_fuzz.py` tries hundreds."""

import sys

import pytest
from course import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import grading_fuzz

pytestmark = pytest.mark.plain_types


@pytest.mark.parametrize("number", range(1, 9))  # none of them in a jail
def test_a_mutated_submission_is_marked_and_rightly(number, tmp_path, monkeypatch):
    monkeypatch.setattr(grading_fuzz.mark_submission, "JailSession", grading_fuzz.InProcess)
    row = grading_fuzz.try_one(number, 7, tmp_path)
    assert not row["problem"], row
