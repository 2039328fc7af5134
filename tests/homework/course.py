"""Submissions for the tests: the students' version of an assignment, filled in as students would."""

from __future__ import annotations

import copy
import inspect
import json
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import homework as tool  # tools/homework.py
from tested_transformer.homework.assignments import assignment
from tested_transformer.homework.submissions.slicing import needed_for
from tested_transformer.homework.tasks import Task
from tested_transformer.reader.show import without_labels

ROOT = Path(__file__).resolve().parents[2]
STORED = Path(__file__).parent / "submissions"
MARKS = re.compile(r"^# marks: (\S+) (\S+) (.*)$", re.MULTILINE)


@dataclass
class Expected:
    """The marks that a submission must get; a task that is not named was not written."""

    points: dict[str, float] = field(default_factory=dict)
    verdicts: dict[str, str] = field(default_factory=dict)
    flags: dict[str, set[str]] = field(default_factory=dict)  # by task, "" for the file
    mistake: str = ""  # that the diagnosis must name


def course(folder: Path) -> Path:
    """A copy of the course's folder: nbgrader writes beside the sources."""
    shutil.copytree(ROOT / "homework" / "source", folder / "source")
    shutil.copy(ROOT / "homework" / "nbgrader_config.py", folder)
    return folder


def solution_cells(name: str) -> dict[str, str]:
    """The text of every solution cell of an assignment, by the cell's id."""
    notebook = json.loads(tool.notebook(name).read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["metadata"]["nbgrader"]["solution"]]
    return {
        cell["metadata"]["nbgrader"]["grade_id"]: tool.MARKER.sub("", "".join(cell["source"]))
        for cell in cells
    }


def filled(released: dict, answers: dict[str, str]) -> dict:
    """The students' notebook with these texts in the cells of these ids."""
    notebook = copy.deepcopy(released)
    for cell in notebook["cells"]:
        name = cell["metadata"].get("nbgrader", {}).get("grade_id")
        cell["source"] = answers.get(name, cell["source"])
    return notebook


def with_code(released: dict, code: str) -> dict:
    """The students' notebook with a code in the cell of the function that it defines, or at the end.

    A line "# cell: ID" names another cell; a line "# next cell" begins one more at the end.
    """
    notebook = copy.deepcopy(released)
    code, *others = code.split("# next cell\n")
    notebook["cells"] += [code_cell(text) for text in others]
    chosen = re.search(r"^# cell: (\S+)$", code, re.MULTILINE)
    names = re.findall(r"^(?:def )?(\w+)(?: = |\()", code, re.MULTILINE)
    for cell in notebook["cells"]:
        stub = re.search(r"^def (\w+)", "".join(cell["source"]), re.MULTILINE)
        marked = cell["metadata"].get("nbgrader", {})
        known = marked.get("solution") and stub and stub[1] in names
        if known or (chosen and chosen[1] == marked.get("grade_id")):
            cell["source"] = code
            return notebook
    notebook["cells"].append(code_cell(code))
    return notebook


def code_cell(code: str) -> dict:
    """A code cell, as Jupyter adds one."""
    last = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    return {**last, "id": "added", "source": code}


def stored() -> dict[str, tuple[str, Expected]]:
    """The stored submissions: name -> code, and the marks that stand at its top."""
    return {path.stem: _read(path) for path in sorted(STORED.glob("*.py"))}


def _read(path: Path) -> tuple[str, Expected]:
    code = path.read_text(encoding="utf-8")
    expected = Expected()
    for task, points, rest in MARKS.findall(code):
        verdict, *flags = [word.strip() for word in rest.split(";")]
        expected.points[task] = float(points)
        expected.verdicts[task] = verdict
        expected.flags[task] = set(flags)
    of_file = re.search(r"^# file: (.*)$", code, re.MULTILINE)
    expected.flags[""] = set(of_file[1].split("; ")) if of_file else set()
    return code, expected


def mistaken(name: str) -> dict[str, tuple[str, Expected]]:
    """A submission for some mutants of each of an assignment's code tasks, in the mutant's own code.

    Every third, as the marker rejects it; that each is rejected and named, the tests of assignments say.
    """
    made = {}
    for task in assignment(name).coded:
        for mutant in task.spec.mutants[2::3] if isinstance(task, Task) else ():
            module = without_labels(inspect.getsource(inspect.getmodule(mutant.candidate)))
            code = needed_for(module, mutant.candidate.__name__)
            code += f"\n\n{task.function} = {mutant.candidate.__name__}\n"
            expected = Expected({task.name: 0.0}, {task.name: "wrong"}, mistake=mutant.name)
            if mutant.name == "the pairs of a whole table":  # 10^15 of them: the jail stops it
                expected = Expected(
                    {task.name: 0.0}, {task.name: "stopped"}, {task.name: {"memory"}}
                )
            made[f"pitfall/{mutant.name}"] = code, expected
    return made
