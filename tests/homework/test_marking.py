"""Marking and grading in one process: what does not need a jail, and what must be refused."""

import json
import re
import shutil
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from itertools import chain

import pytest
from course import ROOT, course

import homework as tool
from tested_transformer.homework import __main__ as command
from tested_transformer.homework.assignments import assignment, assignment_names, part
from tested_transformer.homework.bug_hunts import judge_hunt
from tested_transformer.homework.handout import handed_out
from tested_transformer.homework.jail.bubblewrap import JailMissing, Limits
from tested_transformer.homework.jail.worker import CONSTANTS
from tested_transformer.homework.marking import mark_class
from tested_transformer.homework.marking.files import write_whole
from tested_transformer.homework.marking.interrupts import Stop
from tested_transformer.homework.marking.mark_class import FAILED, grade
from tested_transformer.homework.marking.mark_submission import mark_part
from tested_transformer.homework.marking.marks import Marks, PartMarks, from_json
from tested_transformer.homework.reports.terminal import self_check_report
from tested_transformer.homework.self_check import check
from tested_transformer.homework.submissions.finding import find_submissions
from tested_transformer.homework.submissions.forbidden import borrowed
from tested_transformer.homework.submissions.reading import read_submission
from tested_transformer.homework.tasks import Hunt
from tested_transformer.specs.mistakes import Mutant

pytestmark = pytest.mark.plain_types
PAGE = ROOT / "book" / "for-instructors.md"
HOMEWORK = assignment("hw01")


def notebook(path, code):
    cell = {"cell_type": "code", "metadata": {}, "source": code, "outputs": []}
    path.write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4}))
    return path


# ------------------------------------------------------------------------------ nothing to be run

NOTHING_TO_RUN = {
    "as handed out": ("def look_up(*given):\n    ...", "not written", ()),
    "another name": ("def lookup(*given):\n    return 1", "not found", ("missing function",)),
    "a cell that is no Python": ("def look_up(x\n    return 1", "not found", ()),
}


@pytest.mark.parametrize(("code", "verdict", "flags"), NOTHING_TO_RUN.values(), ids=NOTHING_TO_RUN)
def test_a_verdict_says_of_no_function_what_is_so(tmp_path, code, verdict, flags):
    source = read_submission(notebook(tmp_path / "s01.ipynb", code))
    found = mark_part(HOMEWORK.parts[0], source, 0, pytest.fail)  # opens no session
    assert (found.points, found.verdict, found.flags) == (0.0, verdict, flags)


@pytest.mark.parametrize("data", [b"", b"%PDF-1.7", b"[1, 2]"])
def test_a_file_that_could_not_be_read_is_not_said_to_be_unwritten(tmp_path, data):
    (tmp_path / "s01.ipynb").write_bytes(data)
    found = mark_part(HOMEWORK.parts[0], read_submission(tmp_path / "s01.ipynb"), 0, pytest.fail)
    assert (found.points, found.verdict, found.flags) == (0.0, "not read", ())


def test_a_function_hidden_by_a_stub_is_told_where_both_stand(tmp_path):
    name = HOMEWORK.parts[0].function
    cells = [
        f"import torch\n\ndef {name}(*given):\n    return given[0]", "X = 1",
        f"\ndef {name}(*given):\n    # your code here\n    ...",
    ]  # fmt: skip
    every = [{"cell_type": "code", "metadata": {}, "source": text, "outputs": []} for text in cells]
    (tmp_path / "s01.ipynb").write_text(json.dumps({"cells": every, "metadata": {}, "nbformat": 4}))
    marks = mark_part(HOMEWORK.parts[0], read_submission(tmp_path / "s01.ipynb"), 0, pytest.fail)
    assert (marks.verdict, marks.flags) == ("not written", ("two definitions",))
    both = f"`{name}` is defined in cell 1, line 3 and in cell 3, line 2."
    assert marks.why == f"{both} The last definition counts, and it is empty."
    whole = Marks("s01", "hw01", parts={HOMEWORK.parts[0].name: marks})
    assert both in self_check_report(HOMEWORK, whole)


@pytest.mark.parametrize("verdict", ["not written", "not found", "not read"])
def test_a_self_check_does_not_cross_out_what_is_not_there(verdict):
    task = HOMEWORK.parts[0]
    marks = Marks("yours", "hw01", parts={task.name: PartMarks(0.0, task.points, verdict)})
    title = re.escape(handed_out(HOMEWORK).title(task.name))
    assert title.startswith("1\\.1")
    assert re.search(rf"· {title} +0 of 2 +{verdict}\n", self_check_report(HOMEWORK, marks))


# --------------------------------------------------------------------------------------- the hunt


def mutant(name, function):
    return Mutant(name, function, "the hunt", symptom=f"{name}.", cause="", seen="here", chapter=1)


HUNT = Hunt(
    "a.hunt", "test_it", "double a number", {"twice": lambda x: 2 * x, "sum": lambda x: x + x},
    (mutant("square", lambda x: x * x), mutant("fails", lambda x: x[0]), mutant("one", lambda x: 1)),
    points=4, minutes=1, difficulty="core", chapter=1,
)  # fmt: skip


def test_a_hunt_gives_the_share_that_is_caught():
    def finds_all(f):
        assert f(3) == 6

    def finds_two(f):
        assert f(2) == 4

    assert judge_hunt(HUNT, finds_all)
    assert judge_hunt(HUNT, finds_all).points == 4
    some = judge_hunt(HUNT, finds_two)
    assert (some.points, bool(some)) == (2.67, False)
    assert [m.name for m in some.missed] == ["square"]
    assert "square." in repr(some)


def test_a_test_that_refuses_what_is_right_gets_nothing():
    def picky(f):
        if f(3) != 7:
            raise AssertionError  # as an assert does where pytest does not rewrite it

    verdict = judge_hunt(HUNT, picky)
    assert verdict.points == 0
    assert "A right implementation is rejected: AssertionError: at `raise AssertionError" in repr(
        verdict
    )


def test_a_value_that_is_returned_is_no_verdict():
    verdict = judge_hunt(HUNT, lambda f: f(3) == 6 if f.__class__ else None)
    assert verdict.points < 4
    assert verdict.returned
    assert "assert what must hold" in repr(verdict)


def test_the_order_is_drawn_and_the_implementations_are_disguised():
    orders = set()
    for seed in range(8):
        seen = []

        def look(f, seen=seen):
            assert "lambda" not in repr(f)
            try:
                seen.append(f(3))
            except TypeError as error:
                seen.append(str(error))

        judge_hunt(HUNT, look, seed=seed)
        orders.add(tuple(seen))
        assert set(seen) == {6, 9, 1, "the implementation on trial raised this"}
    assert len(orders) > 3


# ------------------------------------------------------------------------------------------ check


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        (3, TypeError, "name: expected the name of a task, got int"),
        ("hw01.huntt", ValueError, "hw01.hunt"),
        ("hw99.hunt", ValueError, r"a task, such as hw\d\d.hunt"),
        ("hw01", ValueError, "expected a task, such as"),
    ],
)
def test_a_name_that_nobody_has_is_refused(name, kind, words):
    with pytest.raises(kind, match=words):
        check(name, lambda: None)


def test_an_assignment_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="assignment: expected one of hw01"):
        assignment("hw99")


def test_an_assignment_is_a_notebook_and_a_module_of_the_same_name():
    """Both folders are walked: neither has one that the other lacks."""
    sources = (ROOT / "homework" / "source").iterdir()
    assert assignment_names() == sorted(each.name for each in sources if each.is_dir())
    coded = [each for name in assignment_names() for each in assignment(name).coded]
    assert all(part(each.name) is each for each in coded)


# ---------------------------------------------------------------------------------------- the batch


def bare(path, out, **options):
    """Grade our own code, here."""
    return grade(path, HOMEWORK, out, without_jail_for_my_own_code=True, **options)


def test_a_folder_is_graded_in_order_and_kept(tmp_path):
    notebook(tmp_path / "s02.ipynb", "def look_up(*a): ...")
    (tmp_path / "s01.ipynb").write_text("")
    first = bare(tmp_path, tmp_path / "out", seed=3)
    assert [one.id for one in first] == ["s01", "s02"]
    assert first[0].flags == ("empty",)
    kept = next((tmp_path / "out" / "marks").glob("s01-*.json"))
    assert from_json(kept.read_text()) == first[0]
    kept.write_text("not JSON")
    assert bare(tmp_path, tmp_path / "out") == first
    assert from_json(kept.read_text()) == first[0]


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A class that was graded, in `class` and `out`, and places where none is."""
    place = tmp_path_factory.mktemp("graded")
    for folder in ("class", "empty"):
        (place / folder).mkdir()
    for file in ("a file", "class/s01.ipynb"):
        (place / file).write_text("")
    bare(place / "class", place / "out")
    return place


def contents(place):
    """Every folder and file in a place, and what is in the files."""
    return {path: path.is_file() and path.read_bytes() for path in place.rglob("*")}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"jobs": 0}, "jobs: expected at least 1, got 0"),
        ({"path": "nothing"}, "path: expected a folder or a zip"),
        ({"path": "empty"}, "submissions: expected notebooks"),
        ({"homework": "hw02"}, "out: expected a folder of its own for hw02"),
        ({"out": "class"}, "out: expected another folder, got the folder of submissions"),
        ({"out": "a file"}, "out: expected a folder, got the file"),
        ({"seed": 10**10}, "seed: expected"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(graded, change, words):
    before = contents(graded)
    path = graded / change.get("path", "class")
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        grade(path, assignment(change.get("homework", "hw01")), graded / change.get("out", "out"),
              jobs=change.get("jobs", 1), seed=change.get("seed"),
              without_jail_for_my_own_code=True)  # fmt: skip
    assert contents(graded) == before


def test_files_that_are_no_notebooks_are_told(tmp_path, capsys):
    (tmp_path / "s01.ipynb").write_text("")
    (tmp_path / "s02.pdf").write_text("")
    words = ["grade", str(tmp_path), "--assignment", "1", "--out", str(tmp_path / "out")]
    assert command.main([*words, "--without-jail-for-my-own-code"]) == 0
    said = capsys.readouterr().out
    assert "1 file is no notebook and was passed over: s02.pdf\n1 marked.\n" in said
    assert said.endswith("  1 x empty: s01\n")
    for n in range(3, 7):
        (tmp_path / f"s0{n}.pdf").write_text("")
    assert command.main([*words, "--without-jail-for-my-own-code"]) == 0
    five = "5 files are no notebooks and were passed over: s02.pdf, s03.pdf, s04.pdf and 2 more\n"
    assert five in capsys.readouterr().out


@pytest.mark.parametrize(
    "named", ["--seconds", "--jobs", "--seed", "SUBMISSIONS", "--out", "--manual"]
)
def test_an_error_names_what_was_typed(tmp_path, capsys, monkeypatch, named):
    monkeypatch.setattr(mark_class, "JailSession", lambda *_, **__: nullcontext())
    (tmp_path / "s01.ipynb").write_text("")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.json").write_text('{"assignment": "hw01", "seed": 3}')
    typed = {"--seconds": "0", "--jobs": "0", "--seed": "4", "SUBMISSIONS": "no folder",
             "--out": str(tmp_path), "--manual": "no table.csv"}  # fmt: skip
    words = {"--assignment": "1", "--out": str(tmp_path / "out"), "SUBMISSIONS": str(tmp_path)}
    words |= {named: typed[named]}
    folder = words.pop("SUBMISSIONS")
    assert command.main(["grade", folder, *chain(*words.items())]) == 2
    assert capsys.readouterr().err.startswith(f"homework: {named}: ")


def test_a_fault_of_ours_is_told_if_there_is_one(tmp_path, capsys, monkeypatch):
    for name in ("s01", "s02", "s03", "s04", "s05"):
        (tmp_path / f"{name}.ipynb").write_text("")
    one, *others = find_submissions(tmp_path)
    (tmp_path / "out").mkdir()
    marks = [Marks(each.id, "hw01", flags=("empty",)) for each in others]
    marks += [mark_class.failed(one, "hw01", "why")]
    monkeypatch.setattr(command, "grade", lambda *_, **__: marks)
    words = ["grade", str(tmp_path), "--assignment", "1", "--out", str(tmp_path / "out")]
    assert command.main(words) == 1
    said = capsys.readouterr().out
    assert "\n4 marked. 1 not, by a fault of ours.\n" in said
    assert said.endswith("  4 x empty: s02, s03, s04 and 1 more\n  1 x grader failed: s01\n")


def test_the_constants_of_the_package_are_those_of_the_jail():
    from tested_transformer import data

    assert {name: getattr(data, name) for name in CONSTANTS} == CONSTANTS
    used = "from tested_transformer.data import PAD, Pair\ndef f(x): return x == PAD\n"
    assert borrowed(used) == ""
    assert borrowed(used.replace("== PAD", "== Pair")) == "tested_transformer.data.Pair"
    assert borrowed("import tested_transformer as t\ndef f(x): return t.attention(x)") != ""


def test_without_bubblewrap_nothing_is_marked_and_the_way_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        "tested_transformer.homework.jail.bubblewrap.shutil.which", lambda name: None
    )
    notebook(tmp_path / "s01.ipynb", "X = 1")
    with pytest.raises(JailMissing):
        grade(tmp_path, HOMEWORK, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    words = ["grade", str(tmp_path), "--assignment", "1", "--out", str(tmp_path / "out")]
    assert command.main(words) == 2
    said = capsys.readouterr().err
    assert "apt install bubblewrap" in said
    assert "--without-jail-for-my-own-code" in said


def test_a_process_of_ours_that_dies_costs_one_submission(tmp_path, monkeypatch):
    for name in ("s01", "s02", "s03"):
        (tmp_path / f"{name}.ipynb").write_text("")
    todo = find_submissions(tmp_path)

    def pool(some, how, *_):
        for one in some:
            if one.id == "s02":
                return
            yield Marks(one.id, how[0])

    monkeypatch.setattr(mark_class, "_in_pool", pool)
    marks = {one.id: one.flags for one in mark_class._mark_all(todo, ("hw01",), 2, Stop(), list)}
    assert marks == {"s01": (), "s02": (FAILED,), "s03": ()}
    assert BrokenProcessPool  # what _in_pool turns into an early end


def test_a_failure_of_ours_is_not_kept(tmp_path):
    (tmp_path / "s01.ipynb").write_text("")
    one = find_submissions(tmp_path)[0]
    (tmp_path / "marks").mkdir()
    for marks, found in (
        (Marks("s01", "hw01", one.digest), True),
        (mark_class.failed(one, "hw01", "why"), False),
    ):
        write_whole(mark_class._marks_file(tmp_path, "s01"), marks.to_json())
        assert (mark_class._kept(tmp_path, one, "") is not None) == found


def test_the_key_changes_with_seed_and_limits():
    keys = {
        mark_class.run_key(HOMEWORK, seed, Limits(wall_seconds=s))
        for seed in (1, 2)
        for s in (1, 2)
    }
    assert len(keys) == 4
    assert mark_class.run_key(HOMEWORK, 1, Limits()) == mark_class.run_key(HOMEWORK, 1, Limits())


def test_marks_survive_their_file():
    marks = Marks(
        "s01", "hw01", "d", ("x",), ("y",), {"a": PartMarks(1.5, 2, "wrong", ("z",))}, {"w": "ü"}
    )
    assert from_json(marks.to_json()) == marks
    for text in ("{}", "[]", '{"parts": {"a": 3}}', '{"parts": {}, "other": 1}'):
        with pytest.raises(ValueError, match="these are no marks"):
            from_json(text)


# ------------------------------------------------------------------------ the page for instructors


def test_git_passes_over_every_file_that_the_page_names():
    names = set(
        re.findall(
            r"(?:homework grade|/grade|--out|--manual) ([\w/.]+)", PAGE.read_text(encoding="utf-8")
        )
    )
    assert {"class.zip", "marks03", "points.csv", "homework/gradebook.db"} <= names
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no clone of git")
    paths = sorted(f"{name}/" if "." not in name else name for name in names)
    done = subprocess.run(["git", "check-ignore", *paths], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == paths


def test_making_the_notebooks_ends_with_the_next_step(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tool, "COURSE", course(tmp_path / "homework"))
    monkeypatch.setattr(tool, "release", lambda name: ROOT / "homework" / "release" / name)
    monkeypatch.setattr(sys, "argv", ["homework.py", "hw03"])
    assert tool.main() == 0
    place, step = re.search(r"\nNext: (\S+), step (\d)\n$", capsys.readouterr().out).groups()
    assert f"\n### {step}. Let students" in (ROOT / place).read_text(encoding="utf-8")


# -------------------------------------------------------------------------------------- self-check

NOTHING = '{"cells": [{"cell_type": "code", "source": "X = 1"}], "nbformat": 4}'


def test_self_check_finds_the_assignment_and_sums_it_up(tmp_path, capsys):
    code = """
def one_way(w_query, w_key):
    m = w_query @ w_key.mT
    return (((m - m.mT) / 2) ** 2).sum((-1, -2)) / (m**2).sum((-1, -2))

def look_up(labels, value, asked, sharpness):
    return value
"""
    path = notebook(tmp_path / "mine.ipynb", code)
    assert command.main(["self-check", str(path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("hw01: ")
    for sign, name in (("✓", "hw01.one_way"), ("✗", "hw01.look_up"), ("·", "hw01.hunt")):
        assert f"{sign} {handed_out(HOMEWORK).title(name)} " in said
    assert "hw01." not in said
    assert "wrong implementations" not in said  # the test is not written
    assert said.endswith("2 of 13 points for code; 7 more are marked by a person\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "there is no notebook"), ("", "The file is empty.\n"), (NOTHING, "--assignment NN.\n")],
)
def test_self_check_of_nothing_says_so(tmp_path, capsys, text, words):
    path = tmp_path / "mine.ipynb"
    if text is not None:
        path.write_text(text)
    assert command.main(["self-check", str(path)]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert ("--assignment" in said) == ("--assignment" in words)
