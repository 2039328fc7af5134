"""Build the book without Jupyter Book 1, under a later Sphinx: the way out, kept open.

Usage: python tools/book_next.py

The environment that runs this lets Jupyter Book write its settings as Sphinx's. Another one, with what
requirements-next.txt pins, builds the pages from them into _build/next/html, every warning an error.
"""

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

from build_book import RUN_JUPYTER_BOOK
from chapters import ROOT

NEXT = ROOT / "_build" / "next"
PYTHON = NEXT / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
# Jupyter Book itself, and what it adds for live cells, comments, LaTeX and numbered contents, which this book has not.
LEFT_OUT = {
    "jupyter_book",
    "sphinx_thebe",
    "sphinx_comments",
    "sphinx_jupyterbook_latex",
    "sphinx_multitoc_numbering",
}
UNKNOWN = {"comments_config", "use_jupyterbook_latex"}  # settings of those
NOT_NEEDED = {"jupyter-book", "ipykernel", "nbclient", "nbval", "jupyterlab", "jupyterlab-myst"}
BUILD = "import book_next; book_next.build()"


def requirements(now: str, later: str) -> str:
    """The lines of requirements.txt that the way out shares, and after them its own."""
    gone = NOT_NEEDED.union(re.findall(r"^([\w-]+)==", later, re.MULTILINE))
    shared = [line for line in now.splitlines() if line.partition("==")[0] not in gone]
    return "\n".join([*shared, later])


def settings(conf: Path) -> dict:
    """What conf.py says, without the extensions that are left out; every name must lead somewhere."""
    said = runpy.run_path(str(conf))
    kept = {name: said[name] for name in said if name[0] != "_" and name not in UNKNOWN}
    extensions = [name for name in said["extensions"] if name not in LEFT_OUT]
    return {**kept, "extensions": extensions, "nitpicky": True}


def build() -> None:
    """Build the pages; this runs in the other environment."""
    from sphinx.application import Sphinx

    app = Sphinx(
        ROOT, None, NEXT / "html", NEXT / "doctrees", "html", settings(NEXT / "conf.py"),
        freshenv=True, warningiserror=True,
    )  # fmt: skip
    app.build(force_all=True)
    sys.exit(app.statuscode)


def main() -> int:
    """Write settings and requirements, make the other environment, generate the pages, build."""
    shutil.rmtree(NEXT / "html", ignore_errors=True)
    NEXT.mkdir(parents=True, exist_ok=True)
    for name in ("_config.yml", "_toc.yml"):
        shutil.copy(ROOT / name, NEXT)
    files = [ROOT / name for name in ("requirements.txt", "requirements-next.txt")]
    listed = requirements(*(path.read_text(encoding="utf-8") for path in files))
    (NEXT / "requirements.txt").write_text(listed, encoding="utf-8")
    paths = os.pathsep.join(str(ROOT / name) for name in ("code", "book/_ext", "tools"))
    for command in (
        [sys.executable, "-c", RUN_JUPYTER_BOOK, "config", "sphinx", str(NEXT)],
        [sys.executable, "tools/make_venv.py", str(NEXT / "venv")],
        [PYTHON, "tools/install.py", str(NEXT / "requirements.txt")],
        [sys.executable, "tools/generate.py"],
        [PYTHON, "-c", BUILD],
    ):
        environment = {**os.environ, "PYTHONUTF8": "1", "PYTHONPATH": paths}
        if subprocess.run(command, cwd=ROOT, env=environment).returncode:
            print(
                "\nIt did not build without Jupyter Book, see above; a warning counts as an error."
            )
            return 1
    print(f"\nBuilt. Open {(NEXT / 'html' / 'book' / 'index.html').as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
