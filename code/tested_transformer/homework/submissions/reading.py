"""What a notebook defines and what it answers, read as text: none of it is run."""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...errors import argument_error
from ...shapes import checked
from ..words import count
from .answers import code_beside, written_answers
from .cells import notebook_cells
from .definitions import CellProblem, bound_names, gathered_definitions, is_nothing, tree
from .finding import Refused, Submission

__all__ = ["Source", "read_submission"]


@dataclass(frozen=True)
class Source:
    """What a notebook defines, as text.

    `flag` is empty for a sound notebook. "encoding" means: read all the same; "damaged": as far as it is
    whole. With any other flag there is no code: "empty", "too large", "not a notebook", "no notebook", "unreadable", "no code".
    """

    code: str = ""  # what may define something, in the notebook's order: the last of a name wins
    answers: dict[str, str] = field(default_factory=dict)  # markdown, by nbgrader id or by heading
    beside: dict[str, str] = field(
        default_factory=dict
    )  # code written for an answer, by nbgrader id
    problems: tuple[CellProblem, ...] = ()
    flag: str = ""
    sentence: str = ""
    cells: list[Any] = field(default_factory=list, repr=False, compare=False)


@checked
def read_submission(file: Submission | str | Path) -> Source:
    """The definitions and written answers of a submission, or of a notebook on disk.

    Whatever the file holds, this returns: trouble is in `flag`, `sentence` and `problems`.
    """
    if not isinstance(file, Submission):
        file = Submission("", Path(os.path.realpath(file)))
    if file.flag:
        return Source(flag=file.flag, sentence=file.sentence)
    try:
        return read_notebook(file.read())
    except Refused as trouble:
        return Source(flag=trouble.flag, sentence=str(trouble))


def read_notebook(data: bytes) -> Source:
    """The definitions and written answers in the bytes of a notebook; never raises for bad bytes."""
    try:
        cells, encoding, whole = notebook_cells(data)
    except Refused as trouble:
        return Source(flag=trouble.flag, sentence=str(trouble))
    code, problems = gathered_definitions(cells)
    source = Source(code, written_answers(cells), code_beside(cells), problems, cells=cells)
    if not code:
        return replace(source, flag="no code", sentence="No cell defines anything.")
    if not whole:
        sentence = f"The file is damaged: what stands above the damage was read, {count(len(cells), 'cell')}."
        return replace(source, flag="damaged", sentence=sentence)
    if encoding != "utf-8":
        sentence = f"The file is not in UTF-8: it was read as {encoding}."
        return replace(source, flag="encoding", sentence=sentence)
    return source


def defines(source: Source, name: str) -> bool:
    """Whether the code defines a name at its top: a function, a class, an assignment, an import.

    Not seen: names that `from ... import *` brings, and `:=` inside another definition.

    Raises:
        ValueError: `name` is not a single name, such as softmax.
        SyntaxError: the code of `source` is not Python, which no source read from a notebook is.
    """
    if not name.isidentifier():
        raise argument_error(ValueError, "name", repr(name), "a name without dots such as softmax")
    return name in defined_names(source)


def defined_names(source: Source) -> set[str]:
    """All names that the code defines at its top, as `defines` sees them."""
    statements = tree(source.code).body
    return set().union(*map(bound_names, statements))


def is_stub(source: Source, function: str) -> bool:
    """Whether a function is still as it was handed out: nothing in it but a docstring, `...` or `pass`."""
    binding = [node for node in tree(source.code).body if function in bound_names(node)]
    last = binding[-1] if binding else None  # the last of a name counts, whatever it is
    is_function = isinstance(last, (ast.FunctionDef, ast.AsyncFunctionDef))
    return is_function and all(is_nothing(statement) for statement in last.body)
