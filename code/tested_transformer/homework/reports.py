"""Write what comes of the marks: the table, a page for each student, and pages for the instructor."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

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
    for name, text, what in (
        ("grades.csv", grades_csv(assignment, marks, manual), "points, totals and flags"),
        ("summary.html", class_summary(assignment, marks, manual), "the class at a glance"),
        ("answers.html", written_page(assignment, marks), "what is marked by a person, with rubrics"),
        ("written.csv", written_csv(assignment, marks), "to fill in and to give back by --manual"),
    ):  # fmt: skip
        if name != "written.csv" or not (folder / name).exists():
            write_whole(folder / name, text)
        yield f"{folder / name}  {what}"


def keep_manual(out: str | Path, manual: Manual | None) -> Manual:
    """Keep points that a person gave, or give those that were kept: a later run must not lose them.

    Raises: ValueError if what was kept can not be read.
    """
    kept = Path(out) / "manual.json"
    if manual is not None:
        points = {name: dict(parts) for name, parts in manual.points.items()}
        write_whole(kept, json.dumps(points, ensure_ascii=False, indent=1) + "\n")
        return manual
    return Manual(json.loads(kept.read_text(encoding="utf-8"))) if kept.exists() else NOT_MARKED
