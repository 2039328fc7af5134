"""The page on which an instructor marks: all answers in words, question by question, beside their rubrics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..handout import handed_out
from ..marking.files import file_stem
from ..marking.marks import Marks
from ..marking.points import NOT_MARKED, Manual, is_changed
from ..tasks import Assignment, Written
from .page import render

# What the handed out notebook says above an answer: **Your answer.**, **What you found.**
HANDED_OUT = re.compile(r"\s*\*\*(?:Your|What you) [a-z ]+\.\*\*[ \t]*")
# Where the next line of a rubric begins: "1 point: ...", "2 points: ...".
RUBRIC_LINE = re.compile(r"\s+(?=[0-9]+ points?:)")


MOST_PAGE = 6_000_000  # characters of words and code on the page, and as many of pictures
MOST_TEXT = 20_000  # of one answer, however few there are
EMBEDDED = re.compile(r"data:[\w./+-]+;base64,[A-Za-z0-9+/=\s]{100,}")


@dataclass(frozen=True)
class Answer:
    """What one submission holds for one question: words as they were typed, code, and its pictures."""

    id: str
    part: str
    text: str
    code: str
    pictures: tuple[str, ...]  # as data: addresses
    more_pictures: int  # that did not fit onto the page
    is_changed: bool  # since a person marked it

    @property
    def anchor(self) -> str:
        """Where it stands on the page: the part's name, then `file_stem` of the id."""
        return f"{self.part}--{file_stem(self.id)}"


def answers_page(
    assignment: Assignment, marks: Sequence[Marks], manual: Manual = NOT_MARKED
) -> str:
    """All answers in words with question and rubric beside them, less the words that were handed out."""
    marks, handout = sorted(marks, key=lambda one: one.id), handed_out(assignment)
    most = max(1_000, min(MOST_TEXT, MOST_PAGE // max(1, len(marks) * len(assignment.written))))
    room = [MOST_PAGE]
    by_part = [
        (
            part,
            RUBRIC_LINE.sub("\n", part.rubric),
            [_answer(part, one, manual, most, room) for one in marks],
        )
        for part in assignment.written
    ]
    return render(
        "answers.html",
        assignment=assignment,
        title=handout.title,
        question=handout.text,
        by_part=by_part,
        by_submission=list(zip(*(answers for *_, answers in by_part), strict=True)),
        changed=[each for *_, answers in by_part for each in answers if each.is_changed],
        stray=[(one.id, shown("\n\n".join(one.stray), most)) for one in marks if one.stray],
        submissions=len(marks),
    )


def _answer(part: Written, one: Marks, manual: Manual, most: int, room: list[int]) -> Answer:
    every, fitting = one.pictures.get(part.name, ()), []
    for picture in every:
        if len(picture) <= room[0]:
            room[0] -= len(picture)
            fitting.append(picture)
    return Answer(
        one.id,
        part.name,
        shown(own_words(one.written.get(part.name, "")), most),
        shown(one.experiments.get(part.name, ""), most),
        tuple(fitting),
        len(every) - len(fitting),
        is_changed(part, one, manual),
    )


def shown(text: str, most: int) -> str:
    """A text as far as a page holds it: without embedded files, and cut, which is said."""
    text = EMBEDDED.sub("(an embedded file: see the notebook)", text)
    if len(text) <= most:
        return text
    return f"{text[:most]}\n[... {len(text) - most:,} more characters are in the notebook]"


def own_words(text: str) -> str:
    """What was answered, without what was handed out above it; empty if that is nothing."""
    if above := HANDED_OUT.match(text):
        text = text[above.end() :]
    return text.strip("\n") if text.strip() else ""
