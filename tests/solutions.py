"""The chapters' and the assignments' own solutions: what stands in their solution cells, executed."""

from __future__ import annotations

import ast
import functools
import linecache
import re
from typing import Any

import homework as tool  # tools/homework.py
from chapters import chapter_paths, read
from tested_transformer.homework.assignments import assignment
from tested_transformer.homework.submissions.reading import read_submission
from tested_transformer.homework.submissions.slicing import needed_for

CHECKED = re.compile(r'^check\("(ch[\w.]+)", (\w+)\)', re.MULTILINE)
EXTENDED = re.compile(r"^class \w+\((\w+)\):", re.MULTILINE)  # a class that the page shows before
IMPORTS = ast.Import | ast.ImportFrom
DEFINITIONS = IMPORTS | ast.FunctionDef | ast.ClassDef


@functools.cache
def chapter_solutions() -> dict[str, Any]:
    """The solution of every exercise, by the exercise's name, in the order of the book."""
    found = {}
    for path in chapter_paths():
        cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
        space = {"__name__": f"solutions_of_{path.stem}"}
        for number, cell in enumerate(cells):
            is_solution = "solution" in cell.metadata.get("tags", [])
            if is_solution and (base := EXTENDED.search(cell.source)) and base[1] not in space:
                for before, shown in enumerate(cells[:number]):
                    _execute(shown.source, f"<{path.stem} {before}>", DEFINITIONS, space)
            _execute(
                cell.source,
                f"<{path.stem} {number}>",
                DEFINITIONS if is_solution else IMPORTS,
                space,
            )
            if is_solution:
                found |= {name: space[answer] for name, answer in CHECKED.findall(cell.source)}
    return found


def _execute(source: str, file: str, kinds: Any, space: dict) -> None:
    """Execute the statements of these kinds; linecache knows the source, as that of a notebook's cell."""
    lines = [line for line in source.splitlines(keepends=True) if not line.startswith(("%", "!"))]
    tree = ast.parse("".join(lines))
    tree.body = [node for node in tree.body if isinstance(node, kinds)]
    linecache.cache[file] = len(source), None, lines, file
    exec(compile(tree, file, "exec"), space)


@functools.cache
def assignment_solutions(name: str) -> dict[str, Any]:
    """The functions that solve an assignment's code tasks and its hunt, by their names."""
    source = read_submission(tool.notebook(name))
    space: dict[str, Any] = {}
    for part in assignment(name).coded:
        exec(needed_for(source.code, part.function), space)
    return space
