"""The page on which an instructor marks: all answers in words, question by question, beside their rubrics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..marking.files import file_stem
from ..marking.marks import Marks
from ..marking.points import NOT_MARKED, Manual, is_changed
from ..tasks import Assignment, Written
from .page import render

# What the handed out notebook says above an answer: **Your answer.**, **What you found.**
HANDED_OUT = re.compile(r"\s*\*\*(?:Your|What you) [a-z ]+\.\*\*[ \t]*")
# Where the next line of a rubric begins: "1 point: ...", "2 points: ...".
RUBRIC_LINE = re.compile(r"\s+(?=[0-9]+ points?:)")


@dataclass(frozen=True)
class Answer:
    """What one submission holds for one question: words as they were typed, and an experiment's code."""

    id: str
    part: str
    text: str
    code: str
    is_changed: bool  # since a person marked it

    @property
    def anchor(self) -> str:
        """Where it stands on the page: the part's name, then `file_stem` of the id."""
        return f"{self.part}--{file_stem(self.id)}"


def answers_page(
    assignment: Assignment, marks: Sequence[Marks], manual: Manual = NOT_MARKED
) -> str:
    """All answers in words with the rubric beside them, less the words above them that were handed out."""
    marks = sorted(marks, key=lambda one: one.id)
    by_part = [
        (part, RUBRIC_LINE.sub("\n", part.rubric), [_answer(part, one, manual) for one in marks])
        for part in assignment.written
    ]
    return render(
        "answers.html",
        assignment=assignment,
        by_part=by_part,
        by_submission=list(zip(*(answers for *_, answers in by_part), strict=True)),
        changed=[each for *_, answers in by_part for each in answers if each.is_changed],
        submissions=len(marks),
    )


def _answer(part: Written, one: Marks, manual: Manual) -> Answer:
    return Answer(
        one.id,
        part.name,
        own_words(one.written.get(part.name, "")),
        one.experiments.get(part.name, ""),
        is_changed(part, one, manual),
    )


def own_words(text: str) -> str:
    """What was answered, without what was handed out above it; empty if that is nothing."""
    if above := HANDED_OUT.match(text):
        text = text[above.end() :]
    return text.strip("\n") if text.strip() else ""
