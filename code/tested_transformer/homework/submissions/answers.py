"""The answers in words of a notebook, and the code that was written for them."""

from __future__ import annotations

import ast
import re
from typing import Any

from ..handout import HANDED_OUT, HEADING
from .cells import cell_text, is_code
from .definitions import compile_text, is_nothing
from .finding import writable

FENCE = re.compile(r" {0,3}(```|~~~)")


def is_written(answer: str) -> bool:
    """Whether a cell holds more than what was handed out, or than its bold title."""
    title = r"^\*\*.*$" if HANDED_OUT in answer else r"^\*\*[^*]+\*\*$"
    return bool(re.sub(title, "", answer.replace(HANDED_OUT, ""), flags=re.MULTILINE).strip())


def written_answers(cells: list[Any]) -> dict[str, str]:
    """The markdown of a notebook: by nbgrader's id where there is one, else by the heading above."""
    parts_by_name: dict[str, list[str]] = {}
    heading = ""
    for cell in cells:
        text = cell_text(cell)
        if text is None or cell.get("cell_type") not in ("markdown", "heading"):
            continue
        if cell["cell_type"] == "heading":  # format 3
            heading = text.strip()
            continue
        sections = _sections(text, heading)
        heading = sections[-1][0]
        name = nbgrader_id(cell)
        if name is not None:  # one answer as a whole, or with no name the words of a question
            sections = [(name, [text])] if name else []
        for title, lines in sections:
            parts_by_name.setdefault(title, []).append("\n".join(lines).strip())
    joined = {name: "\n\n".join(filter(None, parts)) for name, parts in parts_by_name.items()}
    return {name: text for name, text in joined.items() if text}


def code_beside(cells: list[Any]) -> dict[str, str]:
    """The code that was written for each answer that nbgrader knows: under the same question's heading."""
    questions: list[tuple[list[str], list[str]]] = [([], [])]  # names of answers, texts of code
    for cell in cells:
        text = cell_text(cell)
        if text is None:
            continue
        name = nbgrader_id(cell)
        if is_code(cell):
            if name != "" and not holds_nothing(text):
                questions[-1][1].append(text.strip("\n"))
        elif name:
            questions[-1][0].append(name)
        elif name == "" and len(_sections(text, "")) > 1:
            questions.append(([], []))
    return {name: "\n\n\n".join(texts) for names, texts in questions for name in names if texts}


def holds_nothing(text: str) -> bool:
    """Whether a cell is still as it was handed out: a comment, `...`, a setting such as `STEPS = 1500`."""
    try:
        return all(is_nothing(node) or _is_setting(node) for node in compile_text(text).body)
    except SyntaxError:
        return False


def _is_setting(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and isinstance(
        statement.value, (ast.Constant, ast.Tuple)
    )


def nbgrader_id(cell: dict) -> str | None:
    """The id of a cell to fill in, "" for another cell that nbgrader marked, None for the rest."""
    metadata = cell.get("metadata")
    nbgrader = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    if not isinstance(nbgrader, dict):
        return None
    if not nbgrader.get("solution"):
        return ""
    name = nbgrader.get("grade_id")
    return writable(name) if isinstance(name, str) and name else None


def _sections(text: str, heading: str) -> list[tuple[str, list[str]]]:
    """The lines of a markdown cell under each of its headings; `heading` is the one above it."""
    sections: list[tuple[str, list[str]]] = [(heading, [])]
    fenced = False
    for line in text.split("\n"):
        fenced ^= bool(FENCE.match(line))
        if not fenced and (match := HEADING.match(line)):
            sections.append((match[1].strip(), []))
        else:
            sections[-1][1].append(line)
    return sections
