"""A list of students, and who of them handed in nothing."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection
from pathlib import Path

from ...errors import argument_error

HEADERS = ("id", "student", "students", "student id")  # of the first column, in any case


def read_students(path: str | Path) -> list[str]:
    """The ids in a file: one to a line, or the first column of a CSV, with a header `id` or without one.

    Raises: FileNotFoundError; ValueError for a list that is empty or names somebody twice.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"students: no file {path}")
    text = path.read_bytes().decode("utf-8-sig", "replace")
    separator = max(",;\t", key=text.partition("\n")[0].count)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    ids = [row[0].strip() for row in rows if row and row[0].strip()]
    if ids and ids[0].lower() in HEADERS:
        del ids[0]
    twice = sorted({one for one in ids if ids.count(one) > 1})
    if twice or not ids:
        came = f"{twice[0]!r} twice" if twice else "nobody"
        raise argument_error(ValueError, f"students, {path.name}", came, "each student once")
    return ids


def missing(students: Collection[str], submissions: Collection[str]) -> list[str]:
    """The students without a submission: none has the id, or has it for a folder or a file's first word.

    "s01" handed in "s01", "s01/hw03/hw03", and, as learning platforms name files, "s01_hw03".
    """
    known = {name for one in submissions for name in _names_of(one)}
    return [one for one in students if one not in known]


def unlisted(students: Collection[str], submissions: Collection[str]) -> list[str]:
    """The submissions of which no student on the list has the id."""
    every = set(students)
    return [one for one in submissions if every.isdisjoint(_names_of(one))]


def _names_of(submission: str) -> list[str]:
    """The ids that it may have been handed in under: its own, its folders', and its file's first word."""
    parts = submission.split("/")
    return [submission, *parts, parts[-1].partition("_")[0]]
