"""The page "Test your own model": its files are written, its commands run, and they print what it shows."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "book" / "test_your_own_model.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```\{code-block\} python\n:caption: (\S+)\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = re.findall(r"```console\n\$ (.*?)\n(.*?)```", PAGE, re.DOTALL)
PROMISES = re.findall(r"Replace\s+`(.*?)`\s+by\s+`(.*?)`", PAGE, re.DOTALL)

pytestmark = [pytest.mark.plain_types, pytest.mark.slow]


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def run(folder, *command):
    return subprocess.run(
        [sys.executable, *command], cwd=folder, text=True, capture_output=True,
        env={"PYTHONPATH": str(ROOT / "code"), "OMP_NUM_THREADS": "1", "PATH": ""},
    )  # fmt: skip


@pytest.mark.parametrize(("command", "output"), COMMANDS, ids=[each[0] for each in COMMANDS])
def test_a_command_prints_what_the_page_shows(folder, command, output):
    python, *arguments = shlex.split(command)
    assert python == "python"
    done = run(folder, *arguments)
    assert (done.stdout, done.returncode) == (output, 1), done.stderr


def test_the_cures_of_the_page_work(folder):
    for file, promises in (("attention.py", SCALE), ("gpt.py", PROMISES)):
        path = folder / file
        for old, new in promises:
            text = path.read_text(encoding="utf-8")
            assert old in text
            path.write_text(text.replace(old, new), encoding="utf-8")
    done = run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py")
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


SCALE = [
    ("query @ key.transpose(-2, -1)", "query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5")
]


def test_the_page_has_what_is_tested():
    assert set(FILES) == {"attention.py", "gpt.py", "test_mine.py"}
    assert len(COMMANDS) == 2
    assert len(PROMISES) == 1
