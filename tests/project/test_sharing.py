"""Tests that share something slow to make run in one process."""

import os
import subprocess
import sys
from pathlib import Path

from sharing import FILES, PARAMETERS, group

TESTS = Path(__file__).resolve().parent.parent
ONE = """
import os, pathlib, time
import pytest
@pytest.mark.parametrize("i", range(COUNT))
def test_one(i, worker_id):
    begun = pathlib.Path(os.environ["BEGUN"])
    (begun / worker_id).touch()
    end = time.monotonic() + 60
    while len(os.listdir(begun)) < 2 and time.monotonic() < end:
        time.sleep(0.05)  # until the other process has come up as well
    time.sleep(0.2)  # long enough for it to take some
    print("process", worker_id, __name__)
"""


def test_every_file_named_is_there():
    assert all((TESTS / name).is_file() for name in (*FILES, *PARAMETERS))


def test_groups():
    graded = "tests/homework/test_grading.py"
    assert group(f"{graded}::test_a[x@y]") == group(f"{graded}::test_b") == graded
    answers = "tests/specs/test_answers.py"
    assert group(f"{answers}::test_a[block]") == group(f"{answers}::test_b[block]")
    assert group(f"{answers}::test_a[block]") != group(f"{answers}::test_a[model]")
    alone = "tests/test_shapes.py::test_a[block]"
    assert group(alone) == alone


def test_the_scheduler_goes_by_them(tmp_path):
    # One process has eight tests to do before it takes any of the others, so that there are more of them.
    for name, count in (("homework/test_grading.py", 8), ("test_others.py", 24)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(ONE.replace("COUNT", str(count)))
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text(encoding="utf-8"))
    (begun := tmp_path / "begun").mkdir()
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "-rP", "-q", "."]
    told = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS), "BEGUN": str(begun)},
    ).stdout  # fmt: skip
    lines = [line.split() for line in told.splitlines() if line.startswith("process")]
    processes = {module: {p for _, p, m in lines if m == module} for _, _, module in lines}
    assert len(lines) == 32, told
    assert len(processes["test_grading"]) == 1
    assert len(processes["test_others"]) == 2
