"""The whole flow: make the notebooks, fill them in, grade; and the grader's own marks.

`submissions/` holds what students hand in, and worse; each file says at its top which marks it must get.
"""

from __future__ import annotations

import csv
import json
import os
import socket
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
from course import (
    Expected,
    code_cell,
    course,
    filled,
    mistaken,
    solution_cells,
    stored,
    with_code,
)
from jails import needs_jail

import homework as tool
from tested_transformer.homework.assignments import assignment
from tested_transformer.homework.marking.marks import from_json

pytest.importorskip("nbgrader", reason="nbgrader is not installed: requirements-homework.txt")
pytestmark = [pytest.mark.slow, pytest.mark.plain_types]
NAME = "hw03"
HOMEWORK = assignment(NAME)
FULL = {part.name: float(part.points) for part in HOMEWORK.coded}
SECRET = "HIDDEN"


def everything(verdict="right", flags=()) -> Expected:
    """Full marks for every task."""
    right = dict.fromkeys(FULL, verdict)
    return Expected(dict(FULL), right, {"": set(flags)})


@pytest.fixture(scope="module")
def released(tmp_path_factory) -> dict:
    """The students' notebook, as nbgrader makes it."""
    made = tool.release(NAME, course(tmp_path_factory.mktemp("course") / "homework"))
    return json.loads(made.read_text(encoding="utf-8"))


def odd_files(released: dict) -> dict[str, tuple[bytes, Expected]]:
    """What is wrong with the file and not with the code: name -> bytes, expected marks."""
    solved = solution_cells(NAME)
    perfect = filled(released, solved)
    half = filled(released, {name: solved[name] for name in ("count-pairs", "mean-of-words")})
    half_expected = Expected({n: FULL[n] for n in ("hw03.count_pairs", "hw03.mean_of_words")})
    half_expected.verdicts = dict.fromkeys(half_expected.points, "right")
    bare = json.loads(json.dumps(perfect))
    for cell in bare["cells"]:
        cell["metadata"] = {}
    few = {**perfect, "cells": [c for c in perfect["cells"] if c["cell_type"] == "code"][::-1]}
    one = dump(filled(released, {"count-pairs": solved["count-pairs"]}))
    counted = Expected(
        {"hw03.count_pairs": FULL["hw03.count_pairs"]}, {"hw03.count_pairs": "right"}
    )
    for task in ("hw03.chunk_mask", "hw03.buffer_attention", "hw03.hunt"):
        counted.verdicts[task] = "not found"
    counted.flags = {"": {"damaged"}}
    foreign = filled(released, {"count-pairs": "# für\n" + solved["count-pairs"]})
    only = Expected(
        {"hw03.count_pairs": FULL["hw03.count_pairs"]},
        {"hw03.count_pairs": "right"},
        {"": {"encoding"}},
    )
    unread = dict.fromkeys(FULL, "not read")
    nothing = {
        flag: Expected(verdicts=unread, flags={"": {flag}}) for flag in ("empty", "not a notebook")
    }
    return {
        "perfect.ipynb": (dump(perfect), everything()),
        "half right.ipynb": (dump(half), half_expected),
        "blank.ipynb": (dump(released), Expected()),
        "late/Homework 3 FINAL (2).ipynb": (dump(perfect), everything()),
        "no metadata.ipynb": (dump(bare), everything()),
        "deleted cells.ipynb": (dump(few), everything()),
        "latin-1.ipynb": (dump(foreign, "latin-1"), only),
        "cut short.ipynb": (one[: one.index(b"chunk_mask")], counted),
        "a chain of assignments.ipynb": (dump(chained(released, solved)), everything()),
        "answers below.ipynb": (dump(answered(released)), Expected()),
        "answers below, no metadata.ipynb": (
            dump({"cells": [{**cell, "metadata": {}} for cell in answered(released)["cells"]]}),
            Expected(),
        ),
        "empty.ipynb": (b"", nothing["empty"]),
        "a list.ipynb": (b"[1, 2, 3]", nothing["not a notebook"]),
        "a picture.ipynb": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), nothing["not a notebook"]),
    }


def chained(released: dict, solved: dict[str, str]) -> dict:
    """A right notebook in which a function needs the last of 450 kB of assignments."""
    links = [f"a{n + 1:05} = a{n:05}" for n in range(450_000 // 16)]
    last = links[-1].partition(" ")[0]
    counting = solved["count-pairs"].replace("total = 0", f"total = {last}")
    assert last in counting
    perfect = filled(released, {**solved, "count-pairs": counting})
    perfect["cells"].append(code_cell("\n".join(["a00000 = 0", *links])))
    return perfect


def answered(released: dict) -> dict:
    """The notebook with the answers in words below their placeholders: in new cells of three kinds."""
    new = {
        part.name: {"cell_type": kind, "metadata": {}, "source": text, "outputs": []}
        for part, kind, text in zip(
            HOMEWORK.written,
            ("markdown", "raw", "code"),
            ("Mine.", "Mine.", '"""Mine."""'),
            strict=True,
        )
    }
    cells = []
    for cell in released["cells"]:
        cells.append(cell)
        if (name := cell["metadata"].get("nbgrader", {}).get("grade_id")) in new:
            cells.append(new[name])
    return {**released, "cells": cells}


COUNT_PAIRS = """
def count_pairs(num_queries, num_keys, window):
    counts = [i + num_keys - num_queries + 1 for i in range(num_queries)]
    return SUM + sum(min(max(count, 0), window) for count in counts)
"""


def deep() -> dict[str, tuple[str, Expected]]:
    """Functions that need a long sum: a short one is right, and a long one is left out by name."""
    right, found = {"hw03.count_pairs": 2.0}, {"hw03.count_pairs": "right"}
    expected = {1800: Expected(right, found, {"": set()})}
    for terms in (2100, 2950, 2957, 2960, 2962, 2963, 2964):
        lost = {"hw03.count_pairs": "not found"}
        expected[terms] = Expected({}, lost, {"": {"cell left out"}})
    return {
        f"a sum of {terms} terms": (COUNT_PAIRS.replace("SUM", "+".join("0" * terms)), marks)
        for terms, marks in expected.items()
    }


def dump(notebook: dict, encoding: str = "utf-8") -> bytes:
    return json.dumps(notebook, ensure_ascii=False).encode(encoding)


class Listener(threading.Thread):
    """A server that counts who calls."""

    def __init__(self):
        super().__init__(daemon=True)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port, self.calls = self.socket.getsockname()[1], 0
        self.start()

    def run(self):
        while True:
            line, _ = self.socket.accept()
            self.calls += 1
            line.close()


@pytest.fixture(scope="module")
def batch(released, tmp_path_factory):
    """Every submission in one zip, beside a gradebook that nobody may touch."""
    folder = tmp_path_factory.mktemp("batch")
    (folder / "gradebook.db").write_text("s01: 20 points")
    (folder / "other.ipynb").write_text("{}")
    listener = Listener()
    expected = {}
    with zipfile.ZipFile(folder / "class.zip", "w") as archive:
        for name, (content, marks) in odd_files(released).items():
            archive.writestr(f"export/{name}", content)
            expected[f"export/{name.removesuffix('.ipynb')}"] = marks
        for name, (code, marks) in (stored() | mistaken(NAME) | deep()).items():
            code = code.replace("FOLDER", str(folder)).replace("PORT", str(listener.port))
            archive.writestr(f"export/{name}.ipynb", dump(with_code(released, code)))
            expected[f"export/{name}"] = marks
    return folder, expected, listener


def run(*arguments) -> subprocess.CompletedProcess:
    """The command, as an instructor types it."""
    command = [sys.executable, "-m", "tested_transformer.homework", *map(str, arguments)]
    environment = {**os.environ, "GRADEBOOK_PASSWORD": SECRET}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def graded(batch):
    """The whole batch, graded once; beside it nothing may have changed."""
    folder, _, listener = batch
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    done = run("grade", folder / "class.zip", "--assignment", "3", "--out", folder / "out",
               "--jobs", 2, "--seconds", 12)  # fmt: skip
    assert done.returncode == 0, done.stderr
    after = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert after == before
    assert listener.calls == 0
    marks = [from_json(path.read_text()) for path in (folder / "out" / "marks").iterdir()]
    return folder / "out", {one.id: one for one in marks}, done


NAMES = [*(f"export/{name}" for name in (*stored(), *mistaken(NAME), *deep())),
         *(f"export/{name}" for name in ("perfect", "half right", "blank", "no metadata", "latin-1",
           "late/Homework 3 FINAL (2)", "deleted cells", "empty", "a list", "a picture", "cut short", "answers below",
           "answers below, no metadata", "a chain of assignments"))]  # fmt: skip


@needs_jail
def test_there_are_enough_and_all_were_marked(batch, graded):
    assert len(stored()) >= 70
    assert set(NAMES) == set(batch[1]) == set(graded[1])


@needs_jail
@pytest.mark.parametrize("name", NAMES)
def test_a_submission_gets_its_marks(batch, graded, name):
    expected, marks = batch[1][name], graded[1][name]
    for part in HOMEWORK.coded:
        found = marks.parts[part.name]
        words = f"{part.name}: {found}"
        assert found.points == expected.points.get(part.name, 0.0), words
        assert found.verdict == expected.verdicts.get(part.name, "not written"), words
        flags = set(found.flags) - {"missing function"}
        assert flags == expected.flags.get(part.name, set()), words
    assert set(marks.flags) == expected.flags.get("", set()), marks.flags
    if expected.mistake:
        assert expected.mistake in {part.mistake for part in marks.parts.values()}


# ------------------------------------------------------------------------------ what comes of it


def table(path: Path) -> dict[str, dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        return {row["id"]: row for row in csv.DictReader(stream)}


@needs_jail
def test_a_slow_hunt_is_stopped_by_the_time_of_the_implementations(graded):
    got = graded[1]["export/hunt_calls_slowly"].parts["hw03.hunt"].got
    assert got.startswith("the implementations that the test calls took 12 seconds in ")


@needs_jail
def test_the_table_says_the_same(graded):
    out, marks, _ = graded
    rows = table(out / "grades.csv")
    assert set(rows) == set(marks)
    for name, row in rows.items():
        for part in HOMEWORK.coded:
            assert float(row[part.name]) == marks[name].parts[part.name].points
        assert float(row["total"]) == marks[name].points
        assert row["out_of"] == "20"
    assert rows["export/perfect"]["total"] == "13"
    assert "timeout" in rows["export/loop"]["flags"]


@needs_jail
def test_answers_in_words_are_those_that_were_written(graded):
    _, marks, _ = graded
    assert marks["export/blank"].written == {}
    for name in ("export/answers below", "export/answers below, no metadata"):
        assert marks[name].written == {part.name: "Mine." for part in HOMEWORK.written}
    assert set(marks["export/perfect"].written) == {part.name for part in HOMEWORK.written}
    assert marks["export/blank"].experiments == {}
    (experiment,) = (part.name for part in HOMEWORK.written if part.kind == "experiment")
    assert set(marks["export/perfect"].experiments) == {experiment}


@needs_jail
def test_a_page_tells_its_student_why_and_nothing_else(graded):
    out, marks, _ = graded
    pages = {path.name: path.read_text(encoding="utf-8") for path in (out / "feedback").iterdir()}
    assert len(pages) == len(marks)
    page = next(text for name, text in pages.items() if "pitfall-polarity" in name)
    seed = str(json.loads((out / "run.json").read_text())["seed"])
    for text in pages.values():
        assert seed not in text
        assert "BEGIN SOLUTION" not in text
        assert str(out) not in text
        assert sum(f"{name.rpartition('/')[2]}<" in text for name in marks) <= 2  # its own id
    assert marks["export/pitfall_polarity"].parts["hw03.buffer_attention"].check in page


@needs_jail
def test_a_name_that_is_nearly_right_is_suggested(graded):
    notes = " ".join(graded[1]["export/renamed_function"].notes)
    assert "`count_pairs`" in notes
    assert "`count_pair`" in notes


@needs_jail
def test_a_second_run_marks_only_what_changed(batch, released, tmp_path):
    folder = tmp_path / "class"
    folder.mkdir()
    code = "def count_pairs(num_queries, num_keys, window):\n    return 0\n"
    for name in ("s01", "s02"):
        (folder / f"{name}.ipynb").write_bytes(dump(with_code(released, code)))
    again = ("grade", folder, "--assignment", "hw03", "--out", tmp_path / "out", "--jobs", 1)
    assert run(*again).returncode == 0
    seed = (tmp_path / "out" / "run.json").read_text()
    times = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out" / "marks").iterdir()}
    (folder / "s02.ipynb").write_bytes(dump(with_code(released, code + "\n\nOTHER = 1\n")))
    assert run(*again).returncode == 0
    later = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out" / "marks").iterdir()}
    assert [name[:4] for name in times if times[name] != later[name]] == ["s02-"]
    assert (tmp_path / "out" / "run.json").read_text() == seed
    refused = run(*again, "--seed", 7)
    assert refused.returncode == 2
    assert f"seed: expected {json.loads(seed)['seed']}" in refused.stderr
    last = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out" / "marks").iterdir()}
    assert last == later


@needs_jail
def test_marks_by_hand_are_merged(released, tmp_path):
    (tmp_path / "s01.ipynb").write_bytes(dump(released))
    command = ("grade", tmp_path / "s01.ipynb", "--assignment", "3", "--out", tmp_path / "out")
    assert run(*command).returncode == 0
    empty = (tmp_path / "out" / "written.csv").read_text(encoding="utf-8-sig").splitlines()
    points = [str(part.points) for part in HOMEWORK.written]
    filled_in = tmp_path / "by hand.csv"
    filled_in.write_text("\n".join([empty[0], ",".join(["s01", *points])]) + "\n")
    assert run(*command, "--manual", filled_in).returncode == 0
    row = table(tmp_path / "out" / "grades.csv")["s01"]
    assert (row["total"], row["complete"]) == ("7", "yes")
    filled_in.write_text("\n".join([empty[0], ",".join(["s01", "99", *points[1:]])]) + "\n")
    refused = run(*command, "--manual", filled_in)
    assert refused.returncode == 2
    assert "99" in refused.stderr
    assert table(tmp_path / "out" / "grades.csv")["s01"] == row
    assert run(*command).returncode == 0  # without the points again: they are kept
    assert table(tmp_path / "out" / "grades.csv")["s01"] == row
