"""The Makefile, with a stand-in for the Python of the environment that writes down what it is asked to run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chapters import chapter_paths

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = """#!/bin/sh
case "$*" in
  *tools/make_venv.py*) exit 0 ;;
  *tools/chapters.py*) exec "{python}" "$@" ;;
  *tools/build_book.py*) mkdir -p _build/html && echo new > _build/html/index.html && {then} ;;
esac
echo "$*" >> asked.txt
"""
LONG_AGO = 1_000_000_000  # since old versions of make tell whole seconds apart, and no less
pytestmark = pytest.mark.skipif(
    shutil.which("make") is None or sys.platform == "win32", reason="no make here"
)


class Book:
    """A folder with the Makefile, empty chapters and an environment in which nothing is left to install."""

    def __init__(self, folder: Path):
        self.folder = folder
        for name in ("book", "chapters", "code", "tests", "tools", ".venv/bin"):
            (folder / name).mkdir(parents=True)
        for name in (
            "Makefile",
            "_toc.yml",
            "pyproject.toml",
            "requirements.txt",
            "requirements-dev.txt",
        ):
            shutil.copy(ROOT / name, folder)
        shutil.copy(ROOT / "tools" / "chapters.py", folder / "tools")
        for path in chapter_paths():
            place = folder / path.relative_to(ROOT)
            place.parent.mkdir(exist_ok=True)
            place.touch()
        for name in ("book", "dev"):
            (folder / ".venv" / f"{name}.stamp").touch()
        for path in folder.rglob("*"):
            os.utime(path, (LONG_AGO, LONG_AGO))
        self.python = folder / ".venv" / "bin" / "python"
        self.stand_in("true")

    def stand_in(self, then: str) -> None:
        """Write the stand-in, and what it does after it has built a site."""
        self.python.write_text(STAND_IN.format(python=sys.executable, then=then))
        self.python.chmod(0o755)

    def make(self, *words: str) -> subprocess.CompletedProcess:
        """Run make, by itself where tests are run by make."""
        command = ["make", *words, f"PYTHON={self.python}"]
        alone = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
        return subprocess.run(
            command, cwd=self.folder, env=alone, capture_output=True, text=True, timeout=50
        )

    def asked(self) -> list[str]:
        """What the environment's Python was asked to run since the last time."""
        file = self.folder / "asked.txt"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [line for line in lines if not line.startswith("-c")]


@pytest.fixture
def book(tmp_path):
    return Book(tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pdf", "ONLY=99"], "There is no chapter 99. Take a number (0 to "),
        (["pdf", "ONLY=3 boo"], "There is no chapter boo. "),
        (["pdf", "PAPER=foo"], "The paper is A4 or letter, not foo."),
        (["refresh", "CHAPTERS=nothing"], "There is no chapter nothing. "),
        (["refresh", "CHAPTERS=book"], "There is no chapter book. "),
    ],
)
def test_a_wrong_value_is_said_before_anything_is_installed(book, words, said):
    (book.folder / ".venv" / "dev.stamp").unlink()
    done = book.make(*words)
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith(said)
    assert book.asked() == []


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["pdf", "ONLY=3 book", "PAPER=letter"], "tools/pdf.py --only 3 book --paper letter"),
        (["refresh", "CHAPTERS=3 10_training"], "tools/refresh.py 3 10_training"),
        (["lab"], "-m jupyterlab chapters"),
        (
            ["lab", "LAB=--no-browser --port=8889"],
            "-m jupyterlab chapters --no-browser --port=8889",
        ),
    ],
)
def test_values_are_handed_on(book, words, command):
    assert book.make(*words).returncode == 0
    assert book.asked()[-1] == command


def test_what_is_missing_is_installed_once(book):
    for stamp in (book.folder / ".venv").glob("*.stamp"):
        stamp.unlink()
    assert book.make("pdf").returncode == 0
    assert book.asked()[:2] == [
        "tools/install.py requirements.txt",
        "tools/install.py requirements-dev.txt",
    ]
    assert book.make("pdf").returncode == 0
    assert [line for line in book.asked() if line.startswith("tools/install.py")] == []


def test_a_readers_notebooks_do_not_make_the_site_old(book):
    assert book.make("pdf").returncode == 0
    built, *_ = book.asked()
    assert built.startswith("tools/build_book.py")
    os.utime(book.folder / "_build" / "html" / "index.html", (LONG_AGO + 9, LONG_AGO + 9))
    (book.folder / "chapters" / "Untitled.ipynb").touch()
    for folder in ("chapters", "book"):
        (book.folder / folder / "Untitled Folder").mkdir()
        (book.folder / folder / "Untitled Folder" / "a.md").touch()
    assert book.make("pdf").returncode == 0
    assert book.asked() == ["tools/pdf.py"]
    (book.folder / "chapters" / "03_scaling.ipynb").touch()
    assert book.make("pdf").returncode == 0
    assert book.asked()[0].startswith("tools/build_book.py")


def test_an_interrupted_make_leaves_the_site(book):
    book.stand_in("kill $PPID && sleep 1")
    done = book.make("pdf")
    assert done.returncode != 0
    assert "tools/pdf.py" not in book.asked()
    assert (book.folder / "_build" / "html" / "index.html").read_text() == "new\n"


def test_clean_deletes_what_was_made_and_nothing_of_a_readers(book):
    kept = [book.folder / "chapters" / name for name in ("Untitled", "Folder/mine.ipynb")]
    made = [book.folder / "chapters" / "Untitled Folder" / ".ipynb_checkpoints"]
    made += [book.folder / "code" / "__pycache__", book.folder / "_build", book.folder / ".venv"]
    for path in kept:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    for path in made:
        path.mkdir(parents=True, exist_ok=True)
    assert book.make("clean").returncode == 0
    assert [path for path in kept if not path.exists()] == []
    assert [path for path in made if path.exists()] == []
