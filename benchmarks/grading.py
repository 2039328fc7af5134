"""How long does marking a class take, each function in a jail? Beside nbgrader, which has no jail.

A class of 30: ten perfect notebooks, ten half done, ten with a mistake in every task. The grader marks all of them on
two processes; nbgrader, which executes a notebook from top to bottom in the student's own process, marks the
first three, one after the other, as it does. Wall time, so let nothing else run, and seconds of a processor, which
are the same on a busy machine. About five minutes. `--load 8` marks the class beside eight programs that compute
without end, and compares the marks with those of the row that is stored.

Usage: OMP_NUM_THREADS=1 python benchmarks/grading.py [--class-size 30] [--jobs 2] [--load 8] [--no-nbgrader]
"""

import argparse
import hashlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "homework"))
from course import course, filled, solution_cells
from record import read_rows, write_rows

from homework import release
from tested_transformer.homework.assignments import assignment
from tested_transformer.homework.marking.mark_class import grade

NAME = "hw03"
WHAT = (
    f"wall seconds to mark a class's {NAME} (four code tasks and a bug hunt), each function in a jail of its own; "
    "nbgrader executes whole notebooks without a jail"
)
PEER = 3  # notebooks that nbgrader marks: of each kind one


def notebooks(released: dict) -> list[dict]:
    """A perfect one, a half done one, and one that answers everything wrongly."""
    solved = solution_cells(NAME)
    half = dict(list(solved.items())[:2])
    wrong = {name: _spoiled(text) for name, text in solved.items()}
    return [filled(released, answers) for answers in (solved, half, wrong)]


def _spoiled(text: str) -> str:
    """Every answer 0, and no assertion that can fail."""
    text = text.replace("assert ", "assert True or ")
    return re.sub(r"^(    return) .*$", r"\1 0", text, flags=re.MULTILINE)


def nbgrader_seconds(folder: Path, kinds: list[dict]) -> float:
    """Wall seconds of nbgrader's autograde for a notebook, of each kind one."""
    for number, notebook in enumerate(kinds):
        place = folder / "submitted" / f"s{number:02}" / NAME
        place.mkdir(parents=True)
        (place / f"{NAME}.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "nbgrader", "autograde", NAME, "--create"],
        cwd=folder, env={**os.environ, "PATH": path}, check=True, capture_output=True,
    )  # fmt: skip
    return (time.perf_counter() - start) / len(kinds)


def busy(number: int) -> list[subprocess.Popen]:
    """Programs that compute until they are ended."""
    return [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]


def same_for_all(marks: list) -> str:
    """A digest of all verdicts, points and flags."""
    every = [
        [one.id, name, part.verdict, part.points, list(part.flags)]
        for one in marks
        for name, part in one.parts.items()
    ]
    return hashlib.sha256(json.dumps(every).encode()).hexdigest()[:16]


def main() -> None:
    """Measure both, and store one row for each load."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--class-size", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--load", type=int, default=0)
    parser.add_argument("--no-nbgrader", action="store_true", dest="alone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = course(Path(name) / "course")
        kinds = notebooks(json.loads(release(NAME, folder).read_text(encoding="utf-8")))
        handed_in = Path(name) / "handed in"
        handed_in.mkdir()
        for number in range(options.class_size):
            text = json.dumps(kinds[number % len(kinds)])
            (handed_in / f"s{number:02}.ipynb").write_text(text, encoding="utf-8")
        others, start = busy(options.load), time.perf_counter()
        try:
            marks = grade(
                handed_in, assignment(NAME), Path(name) / "out", jobs=options.jobs, seed=1
            )
            seconds = time.perf_counter() - start
        finally:
            for other in others:
                other.kill()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)  # of those that have ended
        theirs = None if options.alone else nbgrader_seconds(folder, kinds[:PEER])
    full = sum(part.points for part in assignment(NAME).coded)
    points = [one.points for one in marks[:3]]
    assert points[:2] == [full, 4], points
    assert points[2] < 1, points  # a mutant that raises is caught by any test
    row = {
        "submissions": options.class_size, "jobs": options.jobs, "load": options.load,
        "seconds": round(seconds, 1),
        "submissions_per_minute": round(60 * options.class_size / seconds, 1),
        "load_average": round(os.getloadavg()[0], 1), "marks": same_for_all(marks),
    }  # fmt: skip
    if theirs:
        row["nbgrader_seconds_a_submission"] = round(theirs, 1)
        row["ratio_to_nbgrader"] = round(seconds / options.class_size / theirs, 2)
    print(row, f"{used.ru_utime + used.ru_stime:.0f} seconds of a processor")
    size = options.class_size
    before = [one for one in read_rows("grading") if one.get("submissions") == size]
    for one in before:
        assert one.get("marks", row["marks"]) == row["marks"], "other marks than under another load"
    rows = [one for one in read_rows("grading") if one.get("load", 0) != options.load]
    write_rows("grading", WHAT, sorted([*rows, row], key=lambda one: one.get("load", 0)))


if __name__ == "__main__":
    main()
