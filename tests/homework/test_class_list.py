"""Who handed in nothing, answers that nobody gave, tables with many errors, nbgrader's folders, pages' sizes."""

import base64
import re
from dataclasses import replace

import pytest
from example_marks import ASSIGNMENT, CLASS, FOUND, NAMES, WHY, marks
from hypothesis import given
from hypothesis import strategies as st
from test_grades import read

from tested_transformer.homework import __main__ as command
from tested_transformer.homework.marking.manual_import import MOST_ERRORS, read_manual
from tested_transformer.homework.marking.marks import PartMarks
from tested_transformer.homework.marking.points import NOT_MARKED, is_complete, total
from tested_transformer.homework.marking.students import missing, read_students, unlisted
from tested_transformer.homework.marking.tables import grades_csv
from tested_transformer.homework.reports.answers import (
    MOST_PAGE,
    MOST_TEXT,
    answers_page,
    fair_share,
)
from tested_transformer.homework.reports.class_summary import class_summary
from tested_transformer.homework.reports.feedback import feedback_page
from tested_transformer.homework.reports.page import cut, size
from tested_transformer.homework.submissions.collecting import collect

# ------------------------------------------------------------------------------------ the students


@pytest.mark.parametrize("text", [
    "s01\ns02\n\ns03", "\ufeffid\r\ns01\r\ns02\r\ns03\r\n", "Student;name\ns01;A, B\ns02;C\ns03;D\n",
])  # fmt: skip
def test_a_list_of_students_is_read_as_people_write_it(tmp_path, text):
    (tmp_path / "list.csv").write_text(text, encoding="utf-8")
    assert read_students(tmp_path / "list.csv") == ["s01", "s02", "s03"]


@pytest.mark.parametrize(
    ("text", "words"), [("", "nobody"), ("id\n", "nobody"), ("a\nb\na", "'a' twice")]
)
def test_a_list_that_is_none_is_refused(tmp_path, text, words):
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(
        ValueError, match=f"students, list.csv: expected each student once, got {words}"
    ):
        read_students(tmp_path / "list.csv")
    with pytest.raises(FileNotFoundError, match="students: no file"):
        read_students(tmp_path / "none.csv")


def test_a_student_is_known_by_the_id_a_folder_or_the_first_word_of_a_file():
    handed_in = ["s01", "s02/hw03/hw03", "export/s03_4711_hw03", "s040"]
    students = ["s01", "s02", "s03", "s04", "s05"]
    assert missing(students, handed_in) == ["s04", "s05"]
    assert unlisted(students, handed_in) == ["s040"]


def test_who_handed_in_nothing_stands_in_the_table_and_on_the_page():
    rows = {row["id"]: row for row in read(grades_csv(ASSIGNMENT, CLASS, missing=["s99"]))}
    assert len(rows) == len(CLASS) + 1
    assert [rows["s99"][n] for n in (*NAMES, "total")] == ["0"] * (len(NAMES) + 1)
    assert rows["s99"]["flags"] == "nothing handed in"
    page = class_summary(ASSIGNMENT, CLASS, missing=["s99"])
    assert "Handed in nothing" in page
    assert "1 student, with 0 points each" in page
    assert "Handed in nothing" not in class_summary(ASSIGNMENT, CLASS)


# ------------------------------------------------------------------------------- no answer found = 0


def test_questions_without_an_answer_count_0_if_that_is_asked_for():
    zero = replace(NOT_MARKED, zero_without_answer=True)
    empty = marks("s07", written={WHY: "Because."})
    assert not is_complete(ASSIGNMENT, empty, zero)  # one is answered
    nothing = marks("s08", written={})
    assert is_complete(ASSIGNMENT, nothing, zero)
    assert not is_complete(ASSIGNMENT, nothing, NOT_MARKED)
    assert total(ASSIGNMENT, nothing, zero) == total(ASSIGNMENT, nothing, NOT_MARKED)
    for doubt in ({"stray": ("words",)}, {"flags": ("encoding",)}, {"pictures": {WHY: ["data:"]}}):
        assert not is_complete(ASSIGNMENT, replace(nothing, **doubt), zero)


# -------------------------------------------------------------------------------- errors, all at once


def test_a_table_tells_all_that_is_wrong_with_it(tmp_path):
    table = tmp_path / "points.csv"
    table.write_text(f"id,{WHY},{FOUND}\ns01,9,x\ns77,1,1\ns02,1,1\ns02,1,1\ns03,1,1,7\n")
    with pytest.raises(ValueError, match="points.csv") as caught:
        read_manual(table, ASSIGNMENT, [one.id for one in CLASS])
    lines = str(caught.value).splitlines()
    assert [re.search(r"line (\d)", line)[1] for line in lines] == ["2", "2", "3", "5", "6"]
    for words, line in zip(("'9'", "'x'", "'s77'", "'s02' again", "'7'"), lines, strict=True):
        assert words in line
    table.write_text(f"id,{WHY}\n" + "".join(f"t{n},1\n" for n in range(MOST_ERRORS + 5)))
    with pytest.raises(ValueError, match=r"and 5 more$"):
        read_manual(table, ASSIGNMENT, [one.id for one in CLASS])


def test_a_header_tells_all_that_is_wrong_with_it_and_its_rows_too(tmp_path):
    table = tmp_path / "points.csv"
    table.write_text(f"id,{WHY},{WHY},3.6,3.7 comment\ns01,1,1,1,Good\ns77,1,1,1,Good\n")
    with pytest.raises(ValueError, match="points.csv") as caught:
        read_manual(table, ASSIGNMENT, [one.id for one in CLASS])
    lines = str(caught.value).splitlines()
    wanted = (
        f"line 1, column {WHY}:",
        "no such part: '3.6'",
        "no such part: '3.7 comment'",
        "'s77'",
    )
    for words, line in zip(wanted, lines, strict=True):
        assert words in line


# -------------------------------------------------------------------------------- the command's words


@pytest.fixture
def grading(tmp_path, monkeypatch):
    """`grade` as a command, with words after it, over the class of the examples: nothing is executed."""
    (tmp_path / "in").mkdir()
    found = [*CLASS, marks("s07", written={})]
    monkeypatch.setattr(command, "grade", lambda *_, **__: found)
    monkeypatch.setattr(command, "assignment", lambda name: ASSIGNMENT)
    folders = [str(tmp_path / "in"), "--assignment", "1", "--out", str(tmp_path / "out")]

    def graded(*words):
        assert command.main(["grade", *folders, *words]) == 0
        return {
            row["id"]: row for row in read((tmp_path / "out" / "grades.csv").read_text("utf-8"))
        }

    return graded


def test_the_command_takes_a_list_of_students(grading, tmp_path, capsys):
    students = tmp_path / "list.csv"
    students.write_text("id,name\ns01,A\ns98,B\ns99,C\n", encoding="utf-8")
    rows = grading("--students", str(students))
    assert (rows["s98"]["total"], rows["s99"]["flags"]) == ("0", "nothing handed in")
    said = capsys.readouterr().out
    assert "\nhanded in nothing: 2 students: s98, s99\n" in said
    assert f"\non no list: {len(CLASS)} submissions: " in said
    page = (tmp_path / "out" / "summary.html").read_text("utf-8")
    assert "2 students, with 0 points each" in page
    rows = grading()
    assert "s98" not in rows
    assert "handed in nothing" not in capsys.readouterr().out


def test_the_command_counts_0_where_there_is_no_answer(grading):
    assert {row["complete"] for row in grading().values()} == {"no"}
    rows = grading("--no-answer-zero")
    assert [who for who, row in rows.items() if row["complete"] == "yes"] == ["s07"]


# --------------------------------------------------------------------------------- nbgrader's folders


def test_what_nbgrader_collected_is_copied(tmp_path, capsys):
    for who, files in {
        "s01": ["hw03"],
        "s02": ["a", "b"],
        "s03": ["mine"],
        "s04": ["hw03", "x"],
    }.items():
        folder = tmp_path / "submitted" / who / "hw03"
        folder.mkdir(parents=True)
        for name in files:
            (folder / f"{name}.ipynb").write_text(who + name)
    (tmp_path / "submitted" / "s05" / "hw01").mkdir(parents=True)
    out = tmp_path / "out"
    assert collect(tmp_path, "hw03", out) == (["s01", "s03", "s04"], ["s02", "s05"])
    assert {p.name: p.read_text() for p in out.iterdir()} == {
        "s01.ipynb": "s01hw03", "s03.ipynb": "s03mine", "s04.ipynb": "s04hw03",
    }  # fmt: skip
    assert command.main(["collect", str(tmp_path), "--assignment", "3", "--out", str(out)]) == 0
    assert "no notebook: 2 students: s02, s05" in capsys.readouterr().out
    (out / "stranger.ipynb").write_text("")
    assert command.main(["collect", str(tmp_path), "--assignment", "3", "--out", str(out)]) == 2
    assert "stranger.ipynb" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match="nbgrader's course folder"):
        collect(out, "hw03", tmp_path / "other")


# ------------------------------------------------------------------------------------ pages' contents


def test_a_page_stays_small_whatever_is_pasted_into_an_answer():
    picture = f"![plot](data:image/png;base64,{base64.b64encode(bytes(3_000_000)).decode()})"
    large = [marks(f"s{n:03}", written={WHY: picture, FOUND: "word " * 10**6}) for n in range(20)]
    address = "data:image/png;base64," + "A" * 300_000
    large = [replace(one, pictures={FOUND: [address] * 6}) for one in large]
    page = answers_page(ASSIGNMENT, large)
    assert len(page) < 2.2 * MOST_PAGE
    assert "(an embedded file: see the notebook)" in page
    assert "4,980,000 more characters are in the notebook of s000]" in page
    assert page.count("<img") == MOST_PAGE // len(address)
    assert "6 more pictures in the notebook." in page


@pytest.mark.parametrize("number", [1, 300])
@pytest.mark.parametrize("typed", ['"', "漢", "a word\x01"])
def test_a_page_stays_small_whatever_is_typed(number, typed):
    text = typed * 30_000
    every = {"written": {WHY: text, FOUND: text}, "experiments": {FOUND: text}, "stray": (text,)}
    page = answers_page(ASSIGNMENT, [marks(f"s{n:03}", **every) for n in range(number)])
    assert len(page.encode()) < MOST_PAGE + 20_000 + 3_000 * number
    assert page.count("more characters are in the notebook of s000]") == 4


def test_a_short_answer_stays_whole_beside_many_long_ones():
    long = [marks(f"s{n:03}", written={WHY: '"' * 30_000, FOUND: "x" * 30_000}) for n in range(299)]
    short = marks("short", written={WHY: "Because " * 300, FOUND: "It is 3."})
    page = answers_page(ASSIGNMENT, [*long, short])
    assert "Because " * 299 in page
    assert "the notebook of short]" not in page


def test_what_is_left_by_short_texts_is_shared_by_long_ones():
    assert fair_share([10, 10, 10], room=30, most=50) == 50
    assert fair_share([2, 10, 40, 100], room=52, most=50) == 20
    assert fair_share([100], room=1000, most=50) == 50
    assert fair_share([]) == MOST_TEXT


@given(st.text(), st.integers(1, 40))
def test_a_text_is_cut_where_the_page_would_be_too_large(text, most):
    shown = cut(text, most, " elsewhere")
    if size(text) <= most:
        assert shown == text
        return
    kept, number = re.fullmatch(
        r"(.*)\n\[\.\.\. ([0-9]+) more characters elsewhere]", shown, re.DOTALL
    ).groups()
    assert text.startswith(kept)
    assert len(kept) + int(number) == len(text)
    assert size(kept) <= most < size(text[: len(kept) + 1])


def test_a_students_page_stays_small_whatever_the_grader_met():
    huge = '"<' * 500_000
    part = PartMarks(0.0, 4, "wrong", (), huge, huge, huge, huge, huge, huge, huge, (), (), huge)
    one = replace(CLASS[0], notes=(huge,), parts={**CLASS[0].parts, "hw09.softmax_of_rows": part})
    page = feedback_page(ASSIGNMENT, one)
    assert len(page) < 80_000
    assert page.count("more characters]") == 8


def test_an_error_of_the_graders_is_told_to_the_instructor_alone():
    broken = replace(
        CLASS[0], flags=("grader failed",), faults=("hw09.rows: TypeError: ufunc isnan",)
    )
    assert "ufunc isnan" in class_summary(ASSIGNMENT, [broken])
    assert "ufunc isnan" not in feedback_page(ASSIGNMENT, broken)


def test_words_at_the_wrong_position_are_shown():
    page = answers_page(ASSIGNMENT, [replace(CLASS[0], stray=("My answer to 3.6: <b>yes</b>",))])
    assert "Words that stand under no question" in page
    assert "&lt;b&gt;yes" in page
