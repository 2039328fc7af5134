"""Every exercise of every chapter: its solution in the chapter passes, an empty one is no mistake.

What is special to a chapter is tested in test_exercises_chNN.py; test_specs.py holds the usual mistakes.
"""

import pytest

from solutions import chapter_solutions
from tested_transformer.exercises import EXERCISES
from tested_transformer.specs.judge import judge

SOLUTIONS = chapter_solutions()


class Unwritten:
    """A class whose object answers nothing: for an exercise that asks for a class."""

    def __init__(self, *arguments): ...

    def __call__(self, *arguments): ...

    def append(self, *arguments): ...


def test_every_exercise_has_a_solution():
    """A deeper page may have a chapter's earlier one, so the order is the pages'."""
    assert sorted(SOLUTIONS) == sorted(EXERCISES)


def test_every_exercise_says_its_chapter_and_points():
    for name, spec in EXERCISES.items():
        assert name.startswith(f"ch{spec.chapter:02}.")
        assert spec.points > 0


@pytest.mark.parametrize("name", SOLUTIONS)
def test_a_right_answer_passes(name):
    verdict = judge(EXERCISES[name], SOLUTIONS[name])
    assert verdict.passed, verdict
    assert not verdict.skipped


@pytest.mark.parametrize("name", SOLUTIONS)
def test_an_unwritten_answer_is_no_mistake(name):
    is_class = isinstance(SOLUTIONS[name], type)
    verdict = judge(EXERCISES[name], Unwritten if is_class else lambda *arguments, **options: ...)
    assert verdict.unwritten
    assert "not written yet" in repr(verdict)
