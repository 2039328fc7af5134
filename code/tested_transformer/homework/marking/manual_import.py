"""Points that a person gave, from a CSV or from nbgrader's gradebook; all of them, or an error."""

from __future__ import annotations

import csv
import difflib
import io
import re
import sqlite3
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ...errors import argument_error
from ..tasks import Assignment
from .points import Manual, without_empty
from .tables import COMMENT, NO_PARTS, guarded

TAKE_BACK = "unmarked"  # in a cell
MOST_ERRORS = 20  # that are told of one table
NUMBER = re.compile(r"[0-9]+([.,][0-9]*)?|[.,][0-9]+")  # half of Europe writes 1,5


def read_manual(path: str | Path, assignment: Assignment, ids: Collection[str]) -> Manual:
    """The points in a CSV, or in nbgrader's gradebook if the name ends in .db.

    The CSV has a column `id` and one for each part that was marked by hand: answers in words, and
    code parts too, whose points replace the grader's. An empty cell says nothing, and the word
    "unmarked" takes points back: None. A column `PART comment` holds what the student is to read. The
    table may come from any spreadsheet program: separated by commas, semicolons or tabs, with 1.5 or 1,5. What
    else stands in the grader's own table is passed over: a copy of grades.csv can be filled in.

    `ids` are those of the submissions. A student of nbgrader is the submission with that id, or the
    one that has it for a folder in its id: "s01" is "s01/hw01/hw01", as nbgrader collects it.

    Raises:
        FileNotFoundError: there is no file at `path`.
        ValueError: an unknown or repeated id or column, or points that are no number from 0 to the
            part's points; line and column are named.
        ImportError: the gradebook needs nbgrader, which is not installed.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"manual: no file {path}")
    read = _from_gradebook if path.suffix.lower() == ".db" else _from_csv
    return read(path, assignment, ids)


def _points(text: str, where: str, most: int) -> float:
    """The points that a person wrote. Raises ValueError."""
    number = text.strip()
    points = float(number.replace(",", ".")) if NUMBER.fullmatch(number) else None
    if points is None or points > most:
        wanted = f"a number from 0 to {most}, or {TAKE_BACK}"
        raise argument_error(ValueError, where, repr(text), wanted)
    return points


def _unless_taken_back(cell: str) -> str | None:
    """What a cell says, or None if it takes back what was said before."""
    return None if cell.lower() == TAKE_BACK else cell


class _Errors:
    """Collects what is wrong with a table, so that a person mends it once. Use it in `with` statements."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> bool:
        if isinstance(error, ValueError):
            self.sentences.append(str(error))
        return isinstance(error, ValueError)

    def raise_all(self) -> None:
        """Raise ValueError with all of them, if there are any; of very many the first ones."""
        first, more = self.sentences[:MOST_ERRORS], len(self.sentences) - MOST_ERRORS
        if first:
            raise ValueError("\n".join([*first, *([f"and {more} more"] if more > 0 else [])]))


# ------------------------------------------------------------------------------------------------ CSV


def _from_csv(path: Path, assignment: Assignment, ids: Collection[str]) -> Manual:
    """The points of a CSV. Raises ValueError."""
    rows = _rows(path.name, _decode(path.read_bytes())[0])
    line, header = next(rows, (1, []))
    errors = _Errors()
    header = _checked_header(f"{path.name}, line {line}", header, assignment, errors)
    known = _known(ids)
    most = {part.name: part.points for part in assignment.parts}
    points: dict[str, dict[str, float | None]] = {}
    comments: dict[str, dict[str, str | None]] = {}
    for line, row in rows:
        where = f"{path.name}, line {line}"
        if not any(cell.strip() for cell in row):
            continue
        cells, who = {}, None
        with errors:
            cells = dict(_cells(where, header, row))
            who = _known_id(f"{where}, column id", cells["id"], known)
        if who in points:
            with errors:
                again = f"{who!r} again"
                raise argument_error(ValueError, f"{where}, column id", again, "an id once")
            continue
        filled = {n: cell.strip() for n, cell in cells.items() if cell.strip() and n != "id"}
        points[who], comments[who] = {}, {}
        for name, cell in filled.items():
            with errors:
                if name in most:
                    given = _unless_taken_back(cell)
                    column = f"{where}, column {name}"
                    points[who][name] = given and _points(cell, column, most[name])
                elif name.endswith(COMMENT):
                    comments[who][name.removesuffix(COMMENT)] = _unless_taken_back(cell)
        if who is None:
            del points[None], comments[None]
    errors.raise_all()
    return Manual(without_empty(points), comments=without_empty(comments))


def with_rows_for(name: str, data: bytes, ids: Collection[str]) -> tuple[bytes, int]:
    """A table as somebody saved it, with a blank row for each id that it has not, and how many those are.

    What is there stays, byte for byte; the new rows have its encoding, separator and columns.

    Raises: ValueError if it is no such table, or its encoding has no letters for an id.
    """
    text, encoding = _decode(data)
    rows = [row for _, row in _rows(name, text)]
    columns = [cell.strip() for cell in rows[0]] if rows else []
    if "id" not in columns:
        raise argument_error(ValueError, name, columns, "a column `id`")
    column, known = columns.index("id"), _known(ids)
    there = {known.get(row[column]) for row in rows if len(row) > column}
    new = sorted(set(ids) - there)
    stream, line_end = io.StringIO(), "\r\n" if "\r\n" in text else "\n"
    writer = csv.writer(stream, delimiter=_delimiter(text), lineterminator=line_end)
    for one in new:
        writer.writerow([guarded(one) if at == column else "" for at in range(len(columns))])
    gap = line_end if new and not text.endswith("\n") else ""
    try:
        return data + (gap + stream.getvalue()).encode(encoding), len(new)
    except UnicodeEncodeError as error:
        letters = error.object[error.start : error.end]
        raise argument_error(
            ValueError, name, encoding, f"an encoding that has {letters!r}"
        ) from None


def _known(ids: Collection[str]) -> dict[str, str]:
    """The ids by what a cell may hold: each with and without our apostrophe."""
    return {**{one: one for one in ids}, **{guarded(one): one for one in ids}}


def _delimiter(text: str) -> str:
    return max(",;\t", key=text.partition("\n")[0].count)


def _rows(name: str, text: str) -> Iterator[tuple[int, list[str]]]:
    """The rows, each with the number of its first line. Raises ValueError."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text), strict=True)
    line = 1
    try:
        for row in reader:
            yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        raise argument_error(ValueError, f"{name}, line {line}", error, "a line of CSV") from None


def _decode(data: bytes) -> tuple[str, str]:
    """What a spreadsheet program saved, and in which encoding: UTF-8, UTF-16, or Windows' code page."""
    for mark, encoding in ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")):
        if data.startswith(mark):
            return data[2:].decode(encoding, "replace"), encoding
    try:
        return data.decode("utf-8-sig"), "utf-8"
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace"), "cp1252"


def _checked_header(
    where: str, header: Sequence[str], assignment: Assignment, errors: _Errors
) -> list[str]:
    """The names of the columns; what is wrong with them is collected. Raises ValueError for none called `id`."""
    names = [name.strip() for name in header]
    parts = [part.name for part in assignment.parts]
    if "id" not in names:
        raise argument_error(
            ValueError, where, names, "a column `id`, and one for each part marked"
        )
    for name in filter(None, dict.fromkeys(names)):
        with errors:
            if name.removesuffix(COMMENT) not in parts and name not in ("id", *NO_PARTS):
                raise ValueError(f"{where}: no such part: {name!r}; there are {_list(parts)}")
            if names.count(name) > 1:
                raise argument_error(
                    ValueError, f"{where}, column {name}", "it twice", "a column once"
                )
    return names


def _cells(where: str, header: Sequence[str], row: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The cells of a row by column. Raises ValueError for one that stands in no column."""
    for number, (name, cell) in enumerate(zip_longest(header, row, fillvalue=""), start=1):
        if name:
            yield name, cell
        elif cell.strip():
            raise argument_error(
                ValueError, f"{where}, cell {number}", repr(cell), "a column with a name"
            )


def _known_id(where: str, cell: str, known: dict[str, str]) -> str:
    """The submission that a cell names, with or without our apostrophe. Raises ValueError."""
    if cell in known:
        return known[cell]
    near = difflib.get_close_matches(cell, known, n=3) or sorted(known)[:3]
    raise argument_error(
        ValueError, where, repr(cell), f"the id of a submission, such as {_list(near)}"
    )


def _list(names: Collection[str]) -> str:
    return ", ".join(map(repr, names)) or "none, since there are none"


# ------------------------------------------------------------------------------------------- nbgrader


def _from_gradebook(path: Path, assignment: Assignment, ids: Collection[str]) -> Manual:
    """The points of an nbgrader gradebook. Raises ImportError, ValueError."""
    most = {part.name: part.points for part in assignment.written}
    points: dict[str, dict[str, float]] = {}
    for student, name, score, extra in _grades(path, assignment.name):
        if name not in most or score is None:
            continue
        where = f"{path.name}, student {student}, cell {name}"
        if extra:
            raise argument_error(ValueError, where, f"extra credit of {extra:g}", "no extra credit")
        who = _submission_of(student, assignment.name, ids, path.name)
        points.setdefault(who, {})[name] = _points(f"{score:g}", where, most[name])
    return Manual(points)


def _grades(path: Path, assignment: str) -> list[tuple[str, str, float | None, float | None]]:
    """Student, cell, points and extra credit of every cell that carries points.

    nbgrader itself gives 0 to an answer that was left as it was handed out.
    """
    try:
        from nbgrader.api import Gradebook
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        raise ImportError(
            "a gradebook is read by nbgrader, which is not installed: pip install nbgrader, or give "
            "the points as a CSV"
        ) from None
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "gradebook.db")  # opened, nbgrader writes to it
        try:
            _copy(path, copy)
            with Gradebook(f"sqlite:///{copy}") as book:
                _check_assignment(path.name, assignment, [one.name for one in book.assignments])
                return [
                    (submitted.student.id, grade.name, _manual_score(grade), grade.extra_credit)
                    for submitted in book.assignment_submissions(assignment)
                    for notebook in submitted.notebooks
                    for grade in notebook.grades
                ]
        except (sqlite3.Error, SQLAlchemyError) as error:
            came = str(error).partition("\n")[0]
            raise argument_error(
                ValueError, path.name, came, "a gradebook of this nbgrader"
            ) from None


def _copy(path: Path, copy: Path) -> None:
    """Copy a gradebook, whole even while nbgrader writes to it. Raises sqlite3.Error."""
    with (
        closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as old,
        closing(sqlite3.connect(copy)) as new,
    ):
        old.execute("SELECT name FROM assignment LIMIT 0")  # nbgrader would fill an empty database
        old.backup(new)


def _manual_score(grade: Any) -> float | None:
    return grade.auto_score if grade.manual_score is None else grade.manual_score


def _check_assignment(where: str, name: str, there: Collection[str]) -> None:
    if name not in there:
        raise argument_error(ValueError, where, _list(there), f"the assignment {name!r}")


def _submission_of(student: str, assignment: str, ids: Collection[str], where: str) -> str:
    """The id of the one submission of a student. Raises ValueError if there is none, or no one."""
    candidates = [one for one in ids if one == student] or [
        one for one in ids if student in one.split("/")
    ]
    if len(candidates) > 1:  # a folder with everything: s01/hw01/hw01, s01/hw02/hw02
        candidates = [one for one in candidates if assignment in one.split("/")]
    if len(candidates) == 1:
        return candidates[0]
    came = _list(candidates) if candidates else "none"
    raise argument_error(
        ValueError, f"{where}, student {student}", came, "one submission with that id"
    )
