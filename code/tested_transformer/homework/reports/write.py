"""Write what comes of the marks: the table, a page for each student, and pages for the instructor."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...reader.saved_parts import replace_whole
from ..marking.files import page_name, write_whole
from ..marking.manual_import import with_rows_for
from ..marking.manual_store import keep_shown
from ..marking.marks import Marks
from ..marking.points import NOT_MARKED, Manual
from ..marking.tables import grades_csv, written_csv
from ..tasks import Assignment
from ..words import count
from .answers import answers_page
from .class_summary import class_summary
from .feedback import feedback_page


def write_reports(
    out: str | Path,
    assignment: Assignment,
    marks: Sequence[Marks],
    manual: Manual = NOT_MARKED,
    missing: Sequence[str] = (),
) -> Iterator[str]:
    """Write all files anew, each whole or not at all; return a line about each kind.

    `missing` are students who handed in nothing: they have a line in the table, and are named in the summary.

    `written.csv` only grows once it is there: somebody may be filling it in.
    """
    folder = Path(out)
    pages = folder / "feedback"
    pages.mkdir(parents=True, exist_ok=True)
    for one in marks:
        write_whole(pages / page_name(one.id), feedback_page(assignment, one, manual))
    yield f"{pages}/  {count(len(marks), 'page')}, one for each submission"
    answers = answers_page(assignment, marks, manual)
    for name, text, what in (
        ("grades.csv", grades_csv(assignment, marks, manual, missing), "points, totals and flags"),
        ("summary.html", class_summary(assignment, marks, manual, missing), "the class at a glance"),
        ("answers.html", answers, "what is marked by a person, with questions and rubrics"),
    ):  # fmt: skip
        write_whole(folder / name, text)
        yield f"{folder / name}  {what}"
    keep_shown(folder, assignment, marks)
    table = folder / "written.csv"
    yield f"{table}  to fill in and to return by --manual{_grown(table, assignment, marks)}"


def _grown(table: Path, assignment: Assignment, marks: Sequence[Marks]) -> str:
    """Write the empty table, or append to one that is there; what is to be said of it."""
    if not table.exists():
        write_whole(table, written_csv(assignment, marks))
        return ""
    before = table.read_bytes()
    try:
        after, new = with_rows_for(table.name, before, [one.id for one in marks])
    except ValueError as error:
        return f"; it was there and was kept, without rows for new submissions ({error})"
    if new:
        replace_whole(table, after, mode=stat.S_IMODE(table.stat().st_mode))
    return f"; it was there: {count(new, 'row')} appended" if new else "; it was there and was kept"
