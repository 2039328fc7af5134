"""Points by hand over many runs: none is lost, none counts for an answer that nobody read."""

import json
from dataclasses import replace

import pytest
from example_marks import ASSIGNMENT, CLASS, FOUND, HUNT, RIGHT, ROWS, WHY
from handed_in import markdown, notebook
from hypothesis import given
from hypothesis import strategies as st
from test_feedback import seen
from test_grades import read

from tested_transformer.homework import __main__ as command
from tested_transformer.homework.assignments import assignment
from tested_transformer.homework.marking.manual_import import read_manual
from tested_transformer.homework.marking.manual_store import (
    keep_manual,
    keep_shown,
    kept_manual,
    merged,
)
from tested_transformer.homework.marking.mark_submission import mark
from tested_transformer.homework.marking.points import CHANGED, NOT_MARKED, Manual
from tested_transformer.homework.marking.tables import grades_csv
from tested_transformer.homework.reports.answers import answers_page
from tested_transformer.homework.reports.class_summary import class_summary
from tested_transformer.homework.reports.feedback import feedback_page
from tested_transformer.homework.submissions.finding import find_submissions

IDS = [one.id for one in CLASS]
OTHER = {WHY: "Another answer.", FOUND: CLASS[0].written[FOUND]}


def give(folder, text, class_marks=CLASS) -> Manual:
    """What a run with this table keeps."""
    (folder / "points.csv").write_text(text)
    table = read_manual(folder / "points.csv", ASSIGNMENT, [one.id for one in class_marks])
    return keep_manual(folder, ASSIGNMENT, class_marks, table)


def row(manual, one) -> dict[str, str]:
    return read(grades_csv(ASSIGNMENT, [one], manual))[0]


# ------------------------------------------------------------------------------------- merging


def test_a_second_table_changes_only_the_cells_that_it_fills(tmp_path):
    give(tmp_path, f"id,{WHY},{FOUND}\ns01,3,1\ns02,1,0\n")
    give(tmp_path, f"id,{WHY},{FOUND}\ns02,,2\ns03,2,\n")
    wanted = {"s01": {WHY: 3.0, FOUND: 1.0}, "s02": {WHY: 1.0, FOUND: 2.0}, "s03": {WHY: 2.0}}
    assert kept_manual(tmp_path).points == wanted
    give(tmp_path, f"id,{WHY}\n")
    assert kept_manual(tmp_path).points == wanted


def test_a_word_takes_points_back(tmp_path):
    give(tmp_path, f"id,{WHY},{FOUND},{ROWS}\ns01,3,1,0\ns02,1,0,\n")
    manual = give(tmp_path, f"id,{WHY},{FOUND},{ROWS}\ns01,unmarked,, Unmarked \ns03,unmarked,,\n")
    assert manual.points == {"s01": {FOUND: 1.0}, "s02": {WHY: 1.0, FOUND: 0.0}}
    assert manual == kept_manual(tmp_path)
    assert (row(manual, CLASS[0])[WHY], row(manual, CLASS[0])["complete"]) == ("", "no")
    assert row(manual, CLASS[0])[ROWS] == "4"


CELL = st.one_of(st.none(), st.integers(0, 2).map(float))
TABLE = st.dictionaries(
    st.sampled_from(IDS), st.dictionaries(st.sampled_from([WHY, FOUND]), CELL), max_size=4
)


@given(st.lists(TABLE, max_size=5))
def test_tables_one_after_another_are_as_one(tables):
    manual, wanted = NOT_MARKED, {}
    for table in tables:
        manual = merged(manual, Manual(table), ASSIGNMENT, CLASS, {})
        wanted |= {(who, part): n for who, parts in table.items() for part, n in parts.items()}
    found = {(who, part): n for who, parts in manual.points.items() for part, n in parts.items()}
    assert found == {cell: n for cell, n in wanted.items() if n is not None}
    assert {who: set(parts) for who, parts in manual.answers.items()} == {
        who: set(parts) for who, parts in manual.points.items()
    }


def test_points_of_those_who_are_not_in_this_run_are_kept(tmp_path):
    give(tmp_path, f"id,{WHY}\ns01,3\n")
    manual = give(tmp_path, f"id,{WHY}\ns02,1\n", CLASS[1:])
    assert manual.points == {"s01": {WHY: 3.0}, "s02": {WHY: 1.0}}


def test_a_copy_of_the_grades_does_not_nail_down_what_the_grader_gave(tmp_path):
    manual = give(tmp_path, grades_csv(ASSIGNMENT, CLASS))
    assert manual.points == {}
    give(tmp_path, f"id,{ROWS}\ns02,3\n")
    manual = give(tmp_path, f"id,{ROWS}\ns02,0\n")  # what the grader gave
    later = replace(CLASS[1], parts=RIGHT)
    assert (row(manual, later)[ROWS], row(manual, later)["flags"]) == ("4", "")


def test_what_is_kept_is_whole_or_as_it_was(tmp_path, monkeypatch):
    give(tmp_path, f"id,{WHY}\ns01,3\n")
    before = (tmp_path / "manual.json").read_bytes()

    def full(*_):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full)
        with pytest.raises(OSError, match="no space"):
            give(tmp_path, f"id,{WHY}\ns02,3\n")
    assert (tmp_path / "manual.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manual.json", "points.csv"]


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"s01": {"a part": 3}}'])
def test_what_can_not_be_read_is_an_error_and_stays(tmp_path, text):
    (tmp_path / "manual.json").write_text(text)
    with pytest.raises(ValueError, match=r"manual.json: expected \w+ (that )?an earlier run kept"):
        give(tmp_path, f"id,{WHY}\ns02,3\n")
    assert (tmp_path / "manual.json").read_text() == text


# ------------------------------------------------------------------------- answers that changed


def test_an_answer_that_changed_is_to_be_marked_again(tmp_path):
    old, new = CLASS[0], replace(CLASS[0], written=OTHER)
    manual = give(tmp_path, f"id,{WHY},{FOUND}\ns01,3,1\n", [old])
    assert (row(manual, old)["complete"], row(manual, old)["flags"]) == ("yes", "")
    found = row(manual, new)
    assert (found[WHY], found["complete"]) == ("3", "no")
    assert found["flags"] == f"{WHY}: {CHANGED}"
    keep_shown(tmp_path, ASSIGNMENT, [new])
    manual = give(tmp_path, f"id,{WHY}\ns01,3\n", [new])  # the same points count as marked
    assert (row(manual, new)["complete"], row(manual, new)["flags"]) == ("yes", "")


def test_points_are_for_the_answer_that_was_shown(tmp_path):
    old, new = CLASS[0], replace(CLASS[0], written=OTHER)
    keep_shown(tmp_path, ASSIGNMENT, [old])
    keep_shown(tmp_path, ASSIGNMENT, [CLASS[1]])  # a run over another folder
    manual = give(tmp_path, f"id,{WHY},{FOUND}\ns01,3,1\n", [new])
    assert row(manual, new)["flags"] == f"{WHY}: {CHANGED}"


def test_an_answer_that_vanished_and_one_that_came_have_changed(tmp_path):
    none = replace(CLASS[0], written={})
    for before, after in ((CLASS[0], none), (none, CLASS[0])):
        manual = give(tmp_path, f"id,{WHY}\ns01,0\n", [before])
        assert row(manual, after)["flags"] == f"{WHY}: {CHANGED}"


def test_code_whose_points_a_person_replaced_may_change_too(tmp_path):
    first = replace(CLASS[1], parts={**RIGHT, ROWS: replace(RIGHT[ROWS], code="a")})
    second = replace(CLASS[1], parts={**RIGHT, ROWS: replace(RIGHT[ROWS], code="b")})
    manual = give(tmp_path, f"id,{ROWS},{HUNT.name}\ns02,1,1\n", [first])
    assert CHANGED not in row(manual, first)["flags"]
    words = f"{ROWS}: by hand; {HUNT.name}: by hand; {ROWS}: {CHANGED}"
    assert row(manual, second)["flags"] == words


def test_the_pages_say_so(tmp_path):
    old, new = CLASS[0], replace(CLASS[0], written=OTHER)
    manual = give(tmp_path, f"id,{WHY},{FOUND}\ns01,3,1\n", [old])
    assert "Changed since" not in seen(answers_page(ASSIGNMENT, [old], manual))
    page = seen(answers_page(ASSIGNMENT, [new], manual))
    assert f"Changed since they were marked Until points are given again, the old ones count id Part Now s01 {WHY} answer" in page  # fmt: skip
    assert f"{WHY}: {CHANGED} 1: s01" in seen(class_summary(ASSIGNMENT, [new], manual))
    text = seen(feedback_page(ASSIGNMENT, new, manual))
    assert "14 of 15 points so far; a person has yet to mark 3 points" in text
    assert "3 of 3 points Marked by a person, before the answer changed" in text


def test_the_code_of_each_function_has_a_digest_of_its_own(tmp_path):
    """Of what the function needs: an experiment beside it may change."""
    homework = assignment("hw01")
    function = homework.coded[0].function
    digests = []
    for body, beside in (("1", "A = 1"), ("1", "A = 2"), ("2", "A = 2")):
        code = f"def {function}(*a):\n    return {body}\n\n\n{beside}\n"
        cells = [{"cell_type": "code", "source": code}]
        (tmp_path / "s01.ipynb").write_bytes(notebook(*cells))
        one = mark(find_submissions(tmp_path)[0], homework, seed=0,
                   without_jail_for_my_own_code=True)  # fmt: skip
        digests.append([one.answer(part.name) for part in homework.coded[:2]])
    assert digests[0] == digests[1] != digests[2]
    assert {nothing for _, nothing in digests} == {""}


# ---------------------------------------------------------------------------------------- comments


def test_a_comment_is_merged_as_points_are_and_read_by_its_student_alone(tmp_path):
    head = f"id,{WHY},{WHY} comment,{ROWS} comment"
    give(tmp_path, f'{head}\ns01,2,"Good, but say why <b>\nit is d.",\ns02,,See me.,Nice!\n')
    manual = give(tmp_path, f"{head}\ns01,1,,\ns02,,unmarked,\n")
    assert manual == kept_manual(tmp_path)
    comments = {"s01": {WHY: "Good, but say why <b>\nit is d."}, "s02": {ROWS: "Nice!"}}
    assert (manual.comments, manual.points) == (comments, {"s01": {WHY: 1.0}})
    first, second = (feedback_page(ASSIGNMENT, one, manual) for one in CLASS[:2])
    assert "Marked by a person Comment Good, but say why <b> it is d. hw09" in seen(first)
    assert '<dd class="lines">Good, but say why &lt;b&gt;\nit is d.</dd>' in first
    assert seen(second).count("Comment") == 1
    assert "Comment Nice!" in seen(second)


def test_a_comment_on_a_file_that_could_not_be_read_is_shown(tmp_path):
    unread = CLASS[3]
    assert "Nothing in this file could be marked" in seen(feedback_page(ASSIGNMENT, unread))
    manual = give(tmp_path, f"id,{WHY} comment\ns04,Send it again.\n")
    assert "Comment Send it again." in seen(feedback_page(ASSIGNMENT, unread, manual))


# ------------------------------------------------------------------------------------- the command


def test_the_command_over_four_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        command, "grade",
        lambda path, homework, out, **_: [
            mark(one, homework, seed=0) for one in find_submissions(path)
        ],
    )  # fmt: skip
    part = assignment("hw01").written[0]
    folder, table = tmp_path / "class", tmp_path / "points.csv"
    folder.mkdir()
    (tmp_path / "out").mkdir()

    def hand_in(name, answer):
        cell = markdown(answer, grade_id=part.name, solution=True, grade=True)
        (folder / f"{name}.ipynb").write_bytes(notebook(cell))

    def run(text):
        table.write_text(text)
        words = ["grade", str(folder), "--assignment", "1", "--out", str(tmp_path / "out")]
        assert command.main([*words, "--manual", str(table)]) == 0
        rows = read((tmp_path / "out" / "grades.csv").read_bytes().decode())
        return [(one[part.name], CHANGED in one["flags"]) for one in rows], capsys.readouterr().out

    hand_in("s01", "Because.")
    points, told = run(f"id,{part.name}\ns01,1\n")
    assert points == [("1", False)]
    assert "points.csv: points in 1 cell merged\n" in told
    assert "points by hand: 1 submission\n" in told
    hand_in("s02", "It is so.")
    hand_in("s01", "Because it must.")
    points, told = run(f"id,{part.name}\ns01,1\ns02,2\n")  # what was read is the old answer
    assert points == [("1", True), ("2", False)]
    assert "marked again" not in told
    points, told = run(f"id,{part.name}\ns01,1\n")
    assert points == [("1", False), ("2", False)]
    assert f"merged, marked again after a change: s01 {part.name}\n" in told
    points, told = run(f"id,{part.name},{part.name} comment\ns02,unmarked,Come to see me.\n")
    assert points == [("1", False), ("", False)]
    assert "points in 0 cells merged, in 1 cell taken back, 1 comment merged\n" in told
    kept = json.loads((tmp_path / "out" / "manual.json").read_text())
    assert kept["points"] == {"s01": {part.name: 1.0}}
