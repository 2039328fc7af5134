"""Write what comes of the marks: the table, a page for each student, and pages for the instructor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from .by_hand import keep_shown
from .class_pages import class_summary, written_page
from .feedback import feedback_page
from .marks import Marks, write_whole
from .page import count
from .results import NOT_MARKED, Manual, grades_csv, page_name, written_csv
from .tasks import Assignment


def write_reports(
    out: str | Path, assignment: Assignment, marks: Sequence[Marks], manual: Manual = NOT_MARKED
) -> Iterator[str]:
    """Write all files anew, each whole or not at all; give a line about each kind.

    `written.csv` is left alone once it is there: somebody may be filling it in.
    """
    folder = Path(out)
    pages = folder / "feedback"
    pages.mkdir(parents=True, exist_ok=True)
    for one in marks:
        write_whole(pages / page_name(one.id), feedback_page(assignment, one, manual))
    yield f"{pages}/  {count(len(marks), 'page')}, one for each submission"
    answers = written_page(assignment, marks, manual)
    for name, text, what in (
        ("grades.csv", grades_csv(assignment, marks, manual), "points, totals and flags"),
        ("summary.html", class_summary(assignment, marks, manual), "the class at a glance"),
        ("answers.html", answers, "what is marked by a person, with rubrics"),
        ("written.csv", written_csv(assignment, marks), "to fill in and to give back by --manual"),
    ):
        if name != "written.csv" or not (folder / name).exists():
            write_whole(folder / name, text)
        yield f"{folder / name}  {what}"
    keep_shown(folder, assignment, marks)
