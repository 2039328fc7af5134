"""Grades as a table: right sums, nothing computed by a spreadsheet, marks by hand whole or not at all."""

import csv
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from example_marks import (
    ASSIGNMENT,
    BY_HAND,
    CLASS,
    FOUND,
    HUNT,
    NAMES,
    ROWS,
    TEMPERATURE,
    WHY,
    marks,
)
from hypothesis import given
from hypothesis import strategies as st

from tested_transformer.homework.marking.files import file_stem
from tested_transformer.homework.marking.manual_import import read_manual, with_rows_for
from tested_transformer.homework.marking.points import Manual, is_complete, total
from tested_transformer.homework.marking.tables import grades_csv, guarded, written_csv
from tested_transformer.homework.reports.page import identity
from tested_transformer.homework.reports.write import write_reports

IDS = [one.id for one in CLASS]
FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\r=1", "＝1", "'=1", "''+1"]


def read(text: str) -> list[dict[str, str]]:
    """As a program reads it that knows the byte order mark."""
    assert text.startswith("\ufeff")
    return list(csv.DictReader(io.StringIO(text[1:], newline="")))


def filled(tmp_path, text: str, ids=IDS, encoding="utf-8") -> Manual:
    path = tmp_path / "points.csv"
    path.write_bytes(text.encode(encoding))
    return read_manual(path, ASSIGNMENT, ids)


# ------------------------------------------------------------------------------------------- grades


def test_one_line_for_each_submission_one_column_for_each_part():
    rows = read(grades_csv(ASSIGNMENT, CLASS[::-1], BY_HAND))
    assert list(rows[0]) == ["id", *NAMES, "total", "out_of", "complete", "flags", "feedback"]
    assert [row["id"] for row in rows] == sorted(IDS)
    first, second = (list(row.values())[:-1] for row in rows[:2])
    assert first == ["s01", "2", "3", "4", "4", "1.5", "14.5", "15", "yes", ""]
    assert second == ["s02", "2", "", "0", "2.67", "", "4.67", "15", "no", ""]


def test_the_table_leads_to_each_page(tmp_path):
    lines = list(write_reports(tmp_path, ASSIGNMENT, CLASS))
    assert lines[0].endswith("  6 pages, one for each submission")
    for row in read((tmp_path / "grades.csv").read_bytes().decode()):
        text = (tmp_path / "feedback" / row["feedback"]).read_text(encoding="utf-8")
        assert f"<b>{identity(row['id'])}</b>" in text
    assert "1 page, one" in next(write_reports(tmp_path, ASSIGNMENT, CLASS[:1]))


def test_the_same_file_is_named_and_costs_nothing():
    copies = [marks(f"s{n}", digest="the same", flags=("slow",)) for n in (11, 12, 13, 14, 15)]
    unread = [marks(name, digest="") for name in ("s20", "s21")]
    pair = [marks("s30", digest="two"), marks("s30-Copy1", digest="two")]
    rows = {row["id"]: row for row in read(grades_csv(ASSIGNMENT, [*copies[::-1], *unread, *pair]))}
    assert rows["s11"]["flags"] == "slow; same file as s12, s13, s14 and 1 more"
    assert rows["s30"]["flags"] == "same file as s30-Copy1"
    assert rows["s30-Copy1"]["flags"] == "same file as s30"
    assert rows["s20"]["flags"] == rows["s21"]["flags"] == ""
    alone = read(grades_csv(ASSIGNMENT, pair[:1]))
    assert {**rows["s30"], "flags": ""} == alone[0]


def test_an_unreadable_file_gets_nothing_and_says_why():
    row = read(grades_csv(ASSIGNMENT, CLASS))[3]
    assert [row[name] for name in NAMES] == ["0", "", "0", "0", ""]
    assert (row["total"], row["complete"], row["flags"]) == ("0", "no", "not a notebook")


def test_a_person_replaces_the_points_of_a_code_part_and_it_shows():
    row = read(grades_csv(ASSIGNMENT, CLASS, BY_HAND))[2]
    assert (row[ROWS], row["total"]) == ("4", "7")
    assert row["flags"] == f"encoding; {ROWS}: timeout; {ROWS}: by hand"
    nothing = Manual({"s01": {ROWS: 0.0}})
    assert read(grades_csv(ASSIGNMENT, CLASS, nothing))[0][ROWS] == "0"  # none is a number too


def test_complete_means_that_every_answer_in_words_is_marked():
    one = CLASS[0]
    assert is_complete(ASSIGNMENT, one, BY_HAND)
    assert not is_complete(ASSIGNMENT, one, Manual({"s01": {WHY: 3.0}}))
    assert total(ASSIGNMENT, one, Manual({"s01": {WHY: 0.1, FOUND: 0.2}})) == 10.3


def test_lines_end_as_rfc_4180_says_and_texts_are_quoted():
    lines = grades_csv(ASSIGNMENT, [marks("s;01")]).split("\r\n")
    assert lines[1].startswith('"s;01",2,"",4,4,"",10,15,"no",')
    assert lines[2:] == [""]
    assert "\n" not in "".join(lines)


@pytest.mark.parametrize("name", FORMULAS)
def test_no_cell_is_a_formula(name):
    (row,) = read(grades_csv(ASSIGNMENT, [marks(name, flags=(name, "slow"))]))
    assert row["id"] == f"'{name}"
    assert row["flags"] == f"'{name}; slow"


@given(st.text(), st.text())
def test_guarded_texts_stay_apart(one, other):
    assert (guarded(one) == guarded(other)) == (one == other)
    assert guarded(one)[:1] not in tuple("=+-@\t\r\n＝＋－＠")


# ------------------------------------------------------------------------------------ marks by hand

POINTS = st.one_of(st.none(), st.integers(0, 2), st.integers(0, 200).map(lambda n: n / 100))
ID = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.sampled_from(FORMULAS)
)
CLASSES = st.dictionaries(ID, st.fixed_dictionaries({WHY: POINTS, FOUND: POINTS}))


@given(given=CLASSES)
def test_the_empty_table_filled_in_gives_the_points_back(tmp_path_factory, given):
    rows = read(written_csv(ASSIGNMENT, [marks(name) for name in given]))
    stream = io.StringIO()
    table = csv.DictWriter(stream, ["id", WHY, FOUND])
    table.writeheader()
    for row, (_, points) in zip(rows, sorted(given.items()), strict=True):
        assert (row[WHY], row[FOUND]) == ("", "")
        table.writerow({"id": row["id"], **points})
    manual = filled(tmp_path_factory.mktemp("points"), stream.getvalue(), list(given))
    wanted = {n: {k: v for k, v in p.items() if v is not None} for n, p in given.items()}
    assert manual.points == {name: points for name, points in wanted.items() if points}


@pytest.mark.parametrize("name", FORMULAS)
def test_an_id_is_known_with_and_without_the_apostrophe(tmp_path, name):
    for cell in (guarded(name), name):
        text = f'id,{WHY}\r\n"{cell}",1\r\n'
        assert filled(tmp_path, text, [name]).points == {name: {WHY: 1.0}}


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (f"id,{WHY},{FOUND}\ns02,2,1.5\n", "utf-8"),
        (f'{WHY},{FOUND},id\n2,"1,5",s02\n', "utf-8-sig"),
        (f"id;{WHY};{FOUND}\r\ns02;2;1,5\r\n;;\r\n", "utf-8-sig"),
        (f"id\t{WHY}\t{FOUND}\r\ns02\t2\t1,5\r\n", "utf-16"),
        (f"id,{WHY},{FOUND},,\ns02, 2 ,1.5,,\ns01,,,,\n", "utf-8"),
    ],
)
def test_whatever_a_spreadsheet_saves_is_read(tmp_path, text, encoding):
    assert filled(tmp_path, text, encoding=encoding).points == {"s02": {WHY: 2.0, FOUND: 1.5}}


def test_windows_code_page_is_read(tmp_path):
    text = f"id;{WHY}\r\nä1;2\r\n"
    assert filled(tmp_path, text, ["ä1"], "cp1252").points == {"ä1": {WHY: 2.0}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected a column `id`"),
        (f"{WHY}\n1\n", "line 1: expected a column `id`"),
        ("id,why\n", "line 1: no such part: 'why'; there are 'hw09.temperature', "),
        (f"id,{WHY},{WHY}\n", f"line 1, column {WHY}: expected a column once, got it twice"),
        (f"id,{WHY}\ns01,1\n\ns1,1\n", "line 4, column id: expected the id of a submission, such as 's01'"),
        (f"id,{WHY}\n,1\n", "line 2, column id: .* got ''"),
        (f"id,{WHY}\ns01,1\ns01,1\n", "line 3, column id: expected an id once, got 's01' again"),
        (f"id,{WHY}\ns01,3.5\n", f"line 2, column {WHY}: expected a number from 0 to 3, or unmarked, got '3.5'"),
        (f"id,{FOUND}\ns01,-1\n", f"line 2, column {FOUND}: expected a number from 0 to 2, or unmarked, got '-1'"),
        (f"id,{FOUND}\ns01,nan\n", "got 'nan'"),
        (f"id,{FOUND}\ns01,1e0\n", "got '1e0'"),
        (f"id,{FOUND}\ns01,good\n", "got 'good'"),
        (f"id,{FOUND} remark\n", "line 1: no such part: 'hw09-found remark'; there are "),
        (f"id,{FOUND}\ns01,1,2\n", "line 2, cell 3: expected a column with a name, got '2'"),
        (f'id,{FOUND}\ns01,"1\n', "line 2: expected a line of CSV"),
        (f'id,{FOUND}\n"two\nlines",1\ns01,x\n', "line 4, column hw09-found: .* got 'x'"),
    ],
)  # fmt: skip
def test_an_error_names_line_and_column(tmp_path, text, message):
    with pytest.raises(ValueError, match=f"^points.csv, {message}|^points.csv, .*{message}$"):
        filled(tmp_path, text, [*IDS, "two\nlines"])


def test_a_code_part_may_be_marked_by_hand(tmp_path):
    assert filled(tmp_path, f"id,{TEMPERATURE}\ns01,0\n").points == {"s01": {TEMPERATURE: 0.0}}


def test_a_copy_of_the_grades_can_be_filled_in(tmp_path):
    before = grades_csv(ASSIGNMENT, CLASS)
    assert filled(tmp_path, before).points["s02"] == {TEMPERATURE: 2.0, ROWS: 0.0, HUNT.name: 2.67}
    assert grades_csv(ASSIGNMENT, CLASS, filled(tmp_path, before)) == before
    line = before.splitlines()[2]
    assert line.startswith('"s02",2,"",0,')
    changed = before.replace(line, line.replace('"s02",2,"",0,', '"s02",2,1,0.5,'))
    row = read(grades_csv(ASSIGNMENT, CLASS, filled(tmp_path, changed)))[1]
    assert (row[WHY], row[ROWS], row["total"]) == ("1", "0.5", "6.17")
    assert row["flags"] == f"{ROWS}: by hand"


# ------------------------------------------------------------------------- a table that is there

SAVED = [  # by one program or another
    (f"id,{WHY},{FOUND}\ns02,2,\n", "utf-8", "s0ä,,\ns9,,\n"),
    (f"\ufeff{WHY};id;{FOUND};note\r\n2;'=1;1,5;\r\n;s02;;", "utf-8", "\r\n;s0ä;;\r\n;s9;;\r\n"),
    (f"\ufeffid\t{WHY}\n\ns02\t2\n", "utf-16-le", "'=1\t\ns0ä\t\ns9\t\n"),
    (f'id,{WHY}\n"=1",\n\u00fc,', "cp1252", "\ns02,\ns0ä,\ns9,\n"),
]


@pytest.mark.parametrize(("saved", "encoding", "more"), SAVED)
def test_rows_are_appended_and_nothing_else_changes(saved, encoding, more):
    ids = ["s9", "s0ä", "s02", *(["=1"] if "=1" in saved + more else [])]
    before = saved.encode(encoding)
    after, new = with_rows_for("written.csv", before, ids)
    assert after == before + more.encode(encoding)
    assert new == more.strip().count("\n") + 1
    assert with_rows_for("written.csv", after, ids) == (after, 0)


@given(given=CLASSES, more=st.sets(ID))
def test_a_table_that_grew_can_be_given_back(tmp_path_factory, given, more):
    table = written_csv(ASSIGNMENT, [marks(name) for name in given]).encode()
    ids = [*given, *(more - set(given))]
    table, new = with_rows_for("points.csv", table, ids)
    assert new == len(ids) - len(given)
    folder = tmp_path_factory.mktemp("points")
    assert filled(folder, table.decode(), ids).points == {}
    assert [row["id"] for row in read(table.decode())[len(given) :]] == [
        guarded(name) for name in sorted(more - set(given))
    ]


def test_late_submissions_come_into_a_table_that_is_being_filled_in(tmp_path):
    list(write_reports(tmp_path, ASSIGNMENT, CLASS[:2]))
    table = tmp_path / "written.csv"
    table.write_text(f"id;{WHY};{FOUND}\ns01;3;1,5\ns02;;\n")
    table.chmod(0o600)
    *_, told = write_reports(tmp_path, ASSIGNMENT, CLASS[:4])
    assert told.endswith("; it was there: 2 rows appended")
    assert table.read_text() == f"id;{WHY};{FOUND}\ns01;3;1,5\ns02;;\ns03;;\ns04;;\n"
    assert table.stat().st_mode & 0o777 == 0o600
    *_, told = write_reports(tmp_path, ASSIGNMENT, CLASS[:4])
    assert told.endswith("; it was there and was kept")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "written.csv: expected a column `id`, got []"),
        (b'id,a\n"s01,1\n', "written.csv, line 2: expected a line of CSV, got unexpected end of data"),
        (b"id,\xe4\n", "written.csv: expected an encoding that has '\u5b66', got cp1252"),
    ],
)  # fmt: skip
def test_a_table_that_can_not_grow_is_left_alone(tmp_path, content, why):
    (tmp_path / "written.csv").write_bytes(content)
    *_, told = write_reports(tmp_path, ASSIGNMENT, [marks("\u5b66")])
    assert told.endswith(f"it was there and was kept, without rows for new submissions ({why})")
    assert (tmp_path / "written.csv").read_bytes() == content


def test_no_file(tmp_path):
    for name in ("points.csv", "gradebook.db"):
        with pytest.raises(FileNotFoundError, match=f"^manual: no file .*{name}$"):
            read_manual(tmp_path / name, ASSIGNMENT, IDS)
        assert list(tmp_path.iterdir()) == []  # sqlite makes files that are not there


# --------------------------------------------------------------------------------------- gradebooks

NBGRADER_IDS = ["s01/hw08/hw08", "s01/hw09/hw09", "s02/hw09/hw09"]


@pytest.fixture(scope="module")
def new_gradebook(tmp_path_factory):
    """A gradebook with two students, made by nbgrader itself."""
    api = pytest.importorskip("nbgrader.api")
    path = tmp_path_factory.mktemp("nbgrader") / "gradebook.db"
    with (
        pytest.MonkeyPatch.context() as patch
    ):  # to make tables, nbgrader calls the program alembic
        patch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
        book = api.Gradebook(f"sqlite:///{path}", course_id="a course")
    with book:
        book.add_assignment("hw09")
        book.add_notebook("hw09", "hw09")
        for name, kind in ((WHY, "markdown"), (FOUND, "markdown"), (ROWS, "code")):
            book.add_grade_cell(name, "hw09", "hw09", max_score=9, cell_type=kind)
        for student in ("s01", "s02"):
            book.add_student(student)
            book.add_submission("hw09", student)
    return path


@pytest.fixture
def gradebook(new_gradebook, tmp_path):
    """A function that sets marks in a gradebook, and gives its path."""
    from nbgrader.api import Gradebook

    path = Path(shutil.copy(new_gradebook, tmp_path))

    def give(student, cell, **scores):
        with Gradebook(f"sqlite:///{path}", course_id="a course") as book:
            grade = book.find_grade(cell, "hw09", "hw09", student)
            for name, value in scores.items():
                setattr(grade, name, value)
            book.db.commit()
        return path

    return give


def test_a_gradebook_of_nbgrader(gradebook):
    gradebook("s01", WHY, manual_score=2.5, needs_manual_grade=True)
    gradebook("s01", ROWS, auto_score=9.0)  # nbgrader's own marks for code are not taken
    gradebook("s02", WHY, auto_score=0.0, needs_manual_grade=False)  # left as it was handed out
    path = gradebook("s02", FOUND, manual_score=None)
    before = path.read_bytes()
    manual = read_manual(path, ASSIGNMENT, NBGRADER_IDS)
    assert manual.points == {"s01/hw09/hw09": {WHY: 2.5}, "s02/hw09/hw09": {WHY: 0.0}}
    assert read_manual(path, ASSIGNMENT, ["s01", "s02"]).points["s01"] == {WHY: 2.5}
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["s02/hw09/hw09"], "student s01: expected one submission with that id, got none"),
        (["s01/a/hw09/x", "s01/hw09/y"], "one submission with that id, got 's01/a/hw09/x', "),
        (["s011/hw09/hw09"], "got none"),
    ],
)
def test_a_student_who_is_not_one_submission(gradebook, ids, message):
    path = gradebook("s01", WHY, manual_score=1.0)
    with pytest.raises(ValueError, match=message):
        read_manual(path, ASSIGNMENT, ids)


def test_gradebook_points_are_checked_as_any(gradebook):
    path = gradebook("s01", WHY, manual_score=3.5)
    with pytest.raises(
        ValueError, match=f"student s01, cell {WHY}: .* 0 to 3, or unmarked, got '3.5'"
    ):
        read_manual(path, ASSIGNMENT, ["s01"])
    path = gradebook("s01", WHY, manual_score=3.0, extra_credit=1.0)
    with pytest.raises(ValueError, match="expected no extra credit, got extra credit of 1"):
        read_manual(path, ASSIGNMENT, ["s01"])


def test_another_database_and_another_assignment(gradebook, tmp_path):
    other = tmp_path / "other.DB"
    for content in (b"", b"no database at all " * 99):
        other.write_bytes(content)
        with pytest.raises(ValueError, match=r"^other.DB: expected a gradebook"):
            read_manual(other, ASSIGNMENT, IDS)
    path = gradebook("s01", WHY, manual_score=1.0)
    assignment = type(ASSIGNMENT)("hw10", "", "", (), ASSIGNMENT.parts)
    with pytest.raises(ValueError, match="expected the assignment 'hw10', got 'hw09'"):
        read_manual(path, assignment, IDS)


def test_without_nbgrader_the_error_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nbgrader.api", None)
    path = tmp_path / "gradebook.db"
    path.touch()
    with pytest.raises(ImportError, match="pip install nbgrader, or give the points as a CSV"):
        read_manual(path, ASSIGNMENT, IDS)


def test_nbgrader_is_imported_by_nobody_else():
    script = "import sys, tested_transformer.homework.marking.manual_import; print('nbgrader' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


# --------------------------------------------------------------------------------------- file names

NASTY = [
    "", ".", "..", "/", "a/b", "a\\b", "../../etc/passwd", "s01", "S01", "s01.", "s01 ", " s01", "CON", "con",
    "nul.txt", "COM1", "a:b", "a*b?", "\0", "\u00e9", "e\u0301", "ß", "SS", "İ", "學生", "😀", "x" * 300, "x" * 301,
    "s01-" + "0" * 16, file_stem("s01"), "\ud800", "-rf", "~", "%2e%2e",
]  # fmt: skip


def check_stem(stem):
    assert stem.isascii()
    assert stem == stem.lower()
    assert set(stem) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert stem[0].isalnum()
    assert 17 < len(stem) <= 57
    assert stem.split(".")[0] not in {"con", "prn", "aux", "nul"}


def test_nasty_ids_have_safe_names_of_their_own():
    stems = [file_stem(name) for name in NASTY]
    for stem in stems:
        check_stem(stem)
    assert len(set(stems)) == len(NASTY)


@given(st.sets(st.text()))
def test_any_ids_have_safe_names_of_their_own(names):
    stems = {file_stem(name) for name in names}
    assert len(stems) == len(names)
    for stem in stems:
        check_stem(stem)


def test_a_name_is_the_same_tomorrow():
    assert file_stem("s01/hw09") == "s01-hw09-1ad71a2ba14eaaaa"  # by sha256sum
    assert file_stem("S01/HÉ09").startswith("s01-he09-")  # people can read it


def test_the_table_of_nobody():
    assert len(grades_csv(ASSIGNMENT, []).splitlines()) == 1
    assert written_csv(ASSIGNMENT, []) == (
        f'\ufeff"id","{WHY}","{FOUND}","{WHY} comment","{FOUND} comment"\r\n'
    )
    assert HUNT.name in grades_csv(ASSIGNMENT, [])
