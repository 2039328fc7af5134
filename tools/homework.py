"""Make the notebooks that students get, and those with solutions for instructors.

    homework/release/NAME/     for students: nbgrader takes the solutions out
    homework/solutions/NAME/   for instructors: with the model answers and the rubrics

Both folders are ignored by git. Usage: python tools/homework.py [NAME...]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from chapters import ROOT
from tested_transformer.homework.assignments import assignment, assignment_names
from tested_transformer.homework.marking.files import write_whole
from tested_transformer.homework.tasks import Assignment

COURSE = ROOT / "homework"
MARKER = re.compile(r"^\s*### (BEGIN|END) SOLUTION *\n?", re.MULTILINE)


def notebook(name: str) -> Path:
    """The source of an assignment: with solutions between markers."""
    return COURSE / "source" / name / f"{name}.ipynb"


def release(name: str, course: Path = COURSE) -> Path:
    """Let nbgrader write the students' version; one that is there is replaced.

    Raises: RuntimeError, with nbgrader's words, if it fails.
    """
    command = [sys.executable, "-m", "nbgrader", "generate_assignment", name, "--create", "--force"]
    command += [f"--CourseDirectory.root={course}"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(  # nbgrader calls alembic by its name
        command, cwd=course, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    made = course / "release" / name / f"{name}.ipynb"
    if done.returncode or not made.exists():
        raise RuntimeError(f"nbgrader could not make {name}:\n{done.stdout}{done.stderr}")
    return made


def solved(source: dict, homework: Assignment) -> dict:
    """The notebook for instructors: no markers, and each rubric under its question."""
    rubrics = {part.name: part for part in homework.written}
    cells = []
    for cell in source["cells"]:
        text = MARKER.sub("", "".join(cell["source"]))
        cells.append({**cell, "source": text.splitlines(keepends=True)})
        part = rubrics.get(cell["metadata"].get("nbgrader", {}).get("grade_id"))
        if part:
            words = f"**Rubric, {part.points} points.** {part.rubric}"
            rubric = {"cell_type": "markdown", "id": f"rubric-{len(cells)}", "metadata": {}}
            cells.append({**rubric, "source": words.splitlines(keepends=True)})
    return {**source, "cells": cells}


def main() -> int:
    """Make all assignments, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="such as hw03; all, if none is given"
    )
    known = assignment_names()
    names = parser.parse_args().names or known
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no assignment {unknown[0]}: expected some of {', '.join(known)}")
    for name in names:
        source = json.loads(notebook(name).read_text(encoding="utf-8"))
        folder = COURSE / "solutions" / name
        folder.mkdir(parents=True, exist_ok=True)
        answers = solved(source, assignment(name))
        write_whole(
            folder / f"{name}.ipynb", json.dumps(answers, indent=1, ensure_ascii=False) + "\n"
        )
        print(f"{release(name).relative_to(ROOT)}   {assignment(name).title}", flush=True)
    print("For instructors, with solutions: homework/solutions/")
    print("Next: book/for-instructors.md, step 2")
    return 0


if __name__ == "__main__":
    sys.exit(main())
