"""The CSV tables: the grades, and the empty one that a person fills in.

The tables are CSV for spreadsheet programs. They begin with a byte order mark, without which Excel
reads UTF-8 in the system's old code page; LibreOffice and pandas pass over it. Lines end in CR LF (RFC 4180), and every text is quoted, since a spreadsheet that separates cells by
semicolons would otherwise cut a text at its own. Text that would be taken for a formula gets an
apostrophe in front.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

from ..tasks import Assignment
from ..words import plain_number, some
from .files import page_name
from .marks import Marks
from .points import NOT_MARKED, Manual, every_flag, is_complete, points_of, same_file, total

# What makes a spreadsheet compute a text, in Japanese locales in full width too. A text that looks
# guarded is guarded again: no two texts become the same cell.
FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")

# What the table of grades holds beside the id and the parts.
NO_PARTS = ("total", "out_of", "complete", "flags", "feedback")
COMMENT = " comment"  # ends the name of the column for what is said of a part


NOTHING = "nothing handed in"  # a flag


def grades_csv(
    assignment: Assignment,
    marks: Sequence[Marks],
    manual: Manual = NOT_MARKED,
    missing: Sequence[str] = (),
) -> str:
    """One line for each submission: points by part in the notebook's order, total, flags, its page.

    An answer in words that nobody has marked yet is empty, and counts nothing in the total. Flags name
    the other submissions of the same bytes, which no student's page does. Students in `missing`, who handed
    in nothing, stand below with 0 points.
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
    zeros = [0] * len(parts)
    rows += [[one, *zeros, 0, assignment.points, "yes", NOTHING, ""] for one in sorted(missing)]
    return as_csv(rows)


def _same_as(others: Sequence[str]) -> list[str]:
    """The flag that names others with the same file."""
    return [f"same file as {some(others)}"] if others else []


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
