"""Make a folder in which nbgrader finds the course: its settings, the sources and the released notebooks.

    FOLDER/nbgrader_config.py, gradebook.db
    FOLDER/source/hw03/hw03.ipynb       with solutions: only instructors may read this folder
    FOLDER/release/hw03/hw03.ipynb      what `nbgrader release_assignment hw03` hands out

Usage: python tools/course_folder.py FOLDER [NAME...]
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from homework import COURSE, notebook, release
from tested_transformer.homework.assignments import assignment_names

SETTINGS = "nbgrader_config.py"


def make_course(folder: Path, names: list[str]) -> list[Path]:
    """Copy the settings and the sources, and let nbgrader write the released notebooks.

    What nbgrader collected there and the gradebook stay. Raises: RuntimeError if nbgrader fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o750)  # the sources hold the solutions
    shutil.copy(COURSE / SETTINGS, folder)
    for name in names:
        place = folder / "source" / name
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(notebook(name), place)
    return [release(name, folder) for name in names]


def main(words: list[str] | None = None) -> int:
    """Make the folder, and say what to do next."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    known = assignment_names()
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="such as hw03; all if none is given"
    )
    options = parser.parse_args(words)
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"no assignment {unknown[0]}: expected some of {', '.join(known)}")
    for made in make_course(options.folder.resolve(), options.names or known):
        print(made, flush=True)
    print(f"Next, in {options.folder}: nbgrader release_assignment {(options.names or known)[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
