"""Every assignment runs from top to bottom, as students get it and with the solutions."""

import json

import nbformat
import pytest
from course import course
from nbclient import NotebookClient

import homework as tool
from forked_kernels import forking
from tested_transformer.homework.assignments import assignment, assignment_names
from tested_transformer.homework.tasks import Task

pytest.importorskip("nbgrader", reason="nbgrader is not installed: requirements-homework.txt")
NAMES = assignment_names()
pytestmark = [pytest.mark.slow, pytest.mark.plain_types]
SHORT = ("STEPS, SEED = 1500, 0", "STEPS, SEED = 20, 0")  # the project trains for minutes otherwise


@pytest.fixture(scope="module", autouse=True)
def forked_kernels():
    """Eighteen kernels need not import PyTorch eighteen times."""
    with forking():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return course(tmp_path_factory.mktemp("notebooks") / "homework")


def run(notebook: dict, folder) -> str:
    """Execute every cell; what they print. An exception in a cell is raised."""
    text = json.dumps(notebook)
    if notebook["cells"][0]["source"] and SHORT[0] in text:
        text = text.replace(*SHORT)
    opened = nbformat.reads(text, as_version=4)
    NotebookClient(opened, timeout=300, kernel_name="python3",
                   resources={"metadata": {"path": str(folder)}}).execute()  # fmt: skip
    outputs = [out for cell in opened.cells for out in cell.get("outputs", [])]
    return "\n".join(
        out.get("text", "") or out.get("data", {}).get("text/plain", "") for out in outputs
    )


@pytest.mark.parametrize("name", NAMES)
def test_an_unfinished_notebook_runs_and_holds_no_solution(name, folder):
    released = tool.release(name, folder).read_text(encoding="utf-8")
    assert "SOLUTION" not in released
    assert "HIDDEN TEST" not in released
    printed = run(json.loads(released), folder)
    tasks = [part for part in assignment(name).coded if isinstance(part, Task)]
    assert printed.count("not written yet") == len(tasks)
    assert " 0 of " in printed  # what the hunt's empty test catches


@pytest.mark.parametrize("name", NAMES)
def test_the_solutions_run_and_are_right(name, folder):
    source = json.loads(tool.notebook(name).read_text(encoding="utf-8"))
    solved = tool.solved(source, assignment(name))
    assert "SOLUTION" not in json.dumps(solved)
    assert all(part.rubric in _markdown(solved) for part in assignment(name).written)
    printed = run(solved, folder)
    assert printed.count("✓") == len(assignment(name).coded)


def _markdown(notebook: dict) -> str:
    return "\n".join(
        "".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "markdown"
    )
