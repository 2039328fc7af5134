"""What comes of the marks: the table of grades, and the empty table for marks by hand.

The tables are CSV for spreadsheet programs. They begin with a byte order mark, without which Excel
reads UTF-8 in the system's old code page; LibreOffice and pandas pass over it. Lines end in CR LF (RFC 4180), and every text is quoted, since a spreadsheet that separates cells by
semicolons would otherwise cut a text at its own. Text that would be taken for a formula gets an
apostrophe in front.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..tasks import Assignment, Hunt, Task, Written
from .marks import Marks

# What makes a spreadsheet compute a text, in Japanese locales in full width too. A text that looks
# guarded is guarded again: no two texts become the same cell.
FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")

# What the table of grades holds beside the id and the parts.
NO_PARTS = ("total", "out_of", "complete", "flags", "feedback")
COMMENT = " comment"  # ends the name of the column for what is said of a part


@dataclass(frozen=True)
class Manual:
    """What a person gave, by the submission's id and then by the part's name.

    In a table that was just read, None takes points or a comment back.
    """

    points: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    # Digests of the answers that were marked; what the student is to read.
    answers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    comments: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)

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


# --------------------------------------------------------------------------------------------- points


def points_of(part: Task | Hunt | Written, marks: Marks, manual: Manual) -> float | None:
    """A person's points for a part, else the grader's; None for words that nobody has marked yet."""
    by_hand = manual.of(marks).get(part.name)
    if by_hand is not None:
        return by_hand
    if isinstance(part, Written):
        return None
    return marks.parts[part.name].points if part.name in marks.parts else 0.0


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
    found: dict[str, list[str]] = {}
    for one in marks:
        for flag in dict.fromkeys(every_flag(assignment, one, manual)):
            found.setdefault(flag, []).append(one.id)
    return dict(sorted(found.items()))


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
    by_hand, found = (points_of(part, marks, which) for which in (manual, NOT_MARKED))
    return plain_number(by_hand) != plain_number(found)


def plain_number(number: float | None) -> int | float | None:
    """Points as people write them: 2, not 2.0; 1.33, not 1.3333."""
    if number is None:
        return None
    return int(number) if number == int(number) else round(number, 2)


# --------------------------------------------------------------------------------------------- tables


def grades_csv(assignment: Assignment, marks: Sequence[Marks], manual: Manual = NOT_MARKED) -> str:
    """One line for each submission: points by part in the notebook's order, total, flags, its page.

    An answer in words that nobody has marked yet is empty, and counts nothing in the total. Flags name
    the other submissions of the same bytes, which no student's page does.
    """
    others = same_file(marks)
    parts = [part.name for part in assignment.parts]
    rows: list[list[object]] = [["id", *parts, *NO_PARTS]]
    for one in sorted(marks, key=lambda one: one.id):
        rows.append([
            one.id,
            *(plain_number(points_of(part, one, manual)) for part in assignment.parts),
            plain_number(total(assignment, one, manual)),
            assignment.points,
            "yes" if is_complete(assignment, one, manual) else "no",
            "; ".join([*every_flag(assignment, one, manual), *_same_as(others.get(one.id, []))]),
            page_name(one.id),
        ])  # fmt: skip
    return as_csv(rows)


def _same_as(others: Sequence[str]) -> list[str]:
    """The flag that names others with the same file."""
    return [f"same file as {some(others)}"] if others else []


def some(names: Sequence[str]) -> str:
    """Three names, and how many more there are."""
    more = f" and {len(names) - 3} more" if names[3:] else ""
    return ", ".join(names[:3]) + more


def written_csv(assignment: Assignment, marks: Sequence[Marks]) -> str:
    """The table to fill in by hand: a line for each submission; for each answer in words points and a comment."""
    parts = [part.name for part in assignment.written]
    columns = [*parts, *(name + COMMENT for name in parts)]
    ids = sorted(one.id for one in marks)
    return as_csv([["id", *columns], *([one, *([None] * len(columns))] for one in ids)])


def as_csv(rows: Iterable[Iterable[object]]) -> str:
    """Rows as CSV that a spreadsheet program opens rightly and computes nothing of."""
    stream = io.StringIO()
    writer = csv.writer(stream, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\r\n")
    for row in rows:
        writer.writerow([guarded(cell) if isinstance(cell, str) else cell for cell in row])
    return "\ufeff" + stream.getvalue()


def guarded(text: str) -> str:
    """The text, with an apostrophe in front if a spreadsheet program would compute it."""
    return f"'{text}" if FORMULA.match(text) else text


# ----------------------------------------------------------------------------------------- file names


def file_stem(submission: str) -> str:
    """A file name for any id, without extension: always the same, and no other id's on any file system.

    Letters of the id are kept for people, in lower case; a hash of all of it tells ids apart.
    """
    plain = unicodedata.normalize("NFKD", submission).encode("ascii", "ignore").decode().lower()
    words = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:40].strip("-")
    digest = hashlib.sha256(submission.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{words or 'submission'}-{digest}"


def page_name(submission: str) -> str:
    """The file name of the page of an id, safe on any file system."""
    return f"{file_stem(submission)}.html"
