"""The page on which an instructor marks: all answers in words, question by question, beside their rubrics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..handout import handed_out
from ..marking.files import file_stem
from ..marking.marks import Marks
from ..marking.points import NOT_MARKED, Manual, is_changed
from ..tasks import Assignment, Written
from .page import cut, render, size

# What the handed out notebook says above an answer: **Your answer.**, **What you found.**
HANDED_OUT = re.compile(r"\s*\*\*(?:Your|What you) [a-z ]+\.\*\*[ \t]*")
# Where the next line of a rubric begins: "1 point: ...", "2 points: ...".
RUBRIC_LINE = re.compile(r"\s+(?=[0-9]+ points?:)")


MOST_PAGE = 6_000_000  # bytes of words and code as the page holds them, and as many of pictures
MOST_TEXT = 20_000  # of one text, however few there are
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
    most = fair_share(size(text[:MOST_TEXT]) for one in marks for text in _texts(assignment, one))
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
        columns=[handout.title(part.name) for part in assignment.written],
        names=[
            (p.name, handout.title(p.name)) for p in assignment.parts if p.name in handout.questions
        ],
        by_part=by_part,
        by_submission=list(zip(*(answers for *_, answers in by_part), strict=True)),
        changed=[each for *_, answers in by_part for each in answers if each.is_changed],
        stray=[(one.id, shown(_stray(one), most, one.id)) for one in marks if one.stray],
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
        shown(own_words(one.written.get(part.name, "")), most, one.id),
        shown(one.experiments.get(part.name, ""), most, one.id),
        tuple(fitting),
        len(every) - len(fitting),
        is_changed(part, one, manual),
    )


def fair_share(sizes: Iterable[int], room: int = MOST_PAGE, most: int = MOST_TEXT) -> int:
    """The size to which long texts are cut so that all fit: short ones leave the others their room."""
    sizes = sorted(sizes)
    for number, one in enumerate(sizes):
        share = room // (len(sizes) - number)
        if one > share:
            return min(share, most)
        room -= one
    return most


def _texts(assignment: Assignment, one: Marks) -> Iterator[str]:
    """All that the page shows of a submission, uncut."""
    for part in assignment.written:
        yield without_files(own_words(one.written.get(part.name, "")))
        yield without_files(one.experiments.get(part.name, ""))
    yield without_files(_stray(one))


def _stray(one: Marks) -> str:
    return "\n\n".join(one.stray)


def shown(text: str, most: int, notebook: str) -> str:
    """A text as far as a page holds it: without embedded files, and cut, which is said."""
    return cut(without_files(text), most, f" are in the notebook of {notebook}")


def without_files(text: str) -> str:
    """A text with a word in the place of each file that is embedded in it."""
    return EMBEDDED.sub("(an embedded file: see the notebook)", text)


def own_words(text: str) -> str:
    """What was answered, without what was handed out above it; empty if that is nothing."""
    if above := HANDED_OUT.match(text):
        text = text[above.end() :]
    return text.strip("\n") if text.strip() else ""
