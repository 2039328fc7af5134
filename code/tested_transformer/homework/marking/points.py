"""What a submission's points are: the grader's, or those that a person gave in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..tasks import Assignment, Hunt, Task, Written
from ..words import plain_number
from .marks import Marks


@dataclass(frozen=True)
class Manual:
    """What a person gave, by the submission's id and then by the part's name.

    In a table that was just read, None takes points or a comment back.
    """

    points: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    # Digests of the answers that were marked; what the student is to read.
    answers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    comments: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    zero_without_answer: bool = False  # questions to which no answer was found count 0 points

    def of(self, marks: Marks) -> Mapping[str, float | None]:
        """The points of one submission, by part."""
        return self.points.get(marks.id, {})

    def comments_on(self, marks: Marks) -> Mapping[str, str | None]:
        """What was said of one submission, by part."""
        return self.comments.get(marks.id, {})


def without_empty(values: Mapping[str, dict]) -> dict[str, dict]:
    """What was said of those of whom something was said."""
    return {who: parts for who, parts in values.items() if parts}


NOT_MARKED = Manual()
CHANGED = "answer changed since it was marked"  # a flag


def points_of(part: Task | Hunt | Written, marks: Marks, manual: Manual) -> float | None:
    """A person's points for a part, else the grader's; None for words that nobody has marked yet."""
    by_hand = manual.of(marks).get(part.name)
    if by_hand is not None:
        return by_hand
    if isinstance(part, Written):
        return 0.0 if manual.zero_without_answer and is_unanswered(part, marks) else None
    return marks.parts[part.name].points if part.name in marks.parts else 0.0


def is_unanswered(part: Written, marks: Marks) -> bool:
    """Whether nothing was found that could answer a question: words, code, pictures, words anywhere else.

    What the grader could not read, a person has to look at.
    """
    found = (marks.written, marks.experiments, marks.pictures)
    return not (marks.flags or marks.stray or any(part.name in each for each in found))


def total(assignment: Assignment, marks: Marks, manual: Manual) -> float:
    """The sum of the points that there are."""
    return round(sum((points_of(part, marks, manual) or 0.0 for part in assignment.parts), 0.0), 2)


def is_complete(assignment: Assignment, marks: Marks, manual: Manual) -> bool:
    """Whether every answer in words is marked, as it is now."""
    return all(is_marked(part, marks, manual) for part in assignment.parts)


def is_marked(part: Task | Hunt | Written, marks: Marks, manual: Manual) -> bool:
    """Whether there are points for what the part holds now."""
    return points_of(part, marks, manual) is not None and not is_changed(part, marks, manual)


def is_changed(part: Task | Hunt | Written, marks: Marks, manual: Manual) -> bool:
    """Whether the part holds another answer than the one that a person marked."""
    marked = manual.answers.get(marks.id, {}).get(part.name)
    return marked is not None and marked != marks.answer(part.name)


def every_flag(assignment: Assignment, marks: Marks, manual: Manual) -> tuple[str, ...]:
    """The flags of the marks, and for each part what became of points that a person gave."""
    replaced = [part.name for part in assignment.coded if is_replaced(part, marks, manual)]
    changed = [part.name for part in assignment.parts if is_changed(part, marks, manual)]
    return (
        *marks.every_flag(),
        *(f"{name}: by hand" for name in replaced),
        *(f"{name}: {CHANGED}" for name in changed),
    )


def by_flag(assignment: Assignment, marks: Sequence[Marks], manual: Manual) -> dict[str, list[str]]:
    """Every flag that there is, in order, with the ids that have it."""
    ids: dict[str, list[str]] = {}
    for one in marks:
        for flag in dict.fromkeys(every_flag(assignment, one, manual)):
            ids.setdefault(flag, []).append(one.id)
    return dict(sorted(ids.items()))


def same_file(marks: Sequence[Marks]) -> dict[str, list[str]]:
    """The ids of others that handed in the very same bytes, by id: sorted, and none without any."""
    ids: dict[str, list[str]] = {}
    for one in marks:
        ids.setdefault(one.digest, []).append(one.id)
    return {
        one.id: sorted(others)
        for one in marks
        if one.digest and (others := [name for name in ids[one.digest] if name != one.id])
    }


def is_replaced(part: Task | Hunt, marks: Marks, manual: Manual) -> bool:
    """Whether a person gave other points than the grader: a copy of its own table replaces nothing."""
    by_hand, by_grader = (points_of(part, marks, which) for which in (manual, NOT_MARKED))
    return plain_number(by_hand) != plain_number(by_grader)
