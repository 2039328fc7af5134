"""What a notebook defines and what it answers, read as text: none of it is run."""

from __future__ import annotations

import ast
import json
import os
import re
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...errors import argument_error
from .finding import MAX_NOTEBOOK, MB, Refused, Submission, writable

__all__ = ["Source", "read_submission"]

NO_NOTEBOOK = "This file is damaged or is not a notebook: Jupyter could not open it."
MAX_CODE = 500_000  # the Python in it: its syntax tree takes about 200 times as much memory


@dataclass(frozen=True)
class CellProblem:
    """Something that was left out of a notebook, and why."""

    cell: int  # from 1, counting cells of all kinds
    message: str  # what of it was left out and why, for its author: "left out, since ..."


@dataclass(frozen=True)
class Source:
    """What a notebook defines, as text.

    `flag` is empty for a sound notebook. "encoding" means: read all the same. With any other flag
    there is no code: "empty", "too large", "not a notebook", "no notebook", "unreadable", "no code".
    """

    code: str = ""  # what may define something, in the notebook's order: the last of a name wins
    answers: dict[str, str] = field(default_factory=dict)  # markdown, by nbgrader id or by heading
    beside: dict[str, str] = field(
        default_factory=dict
    )  # code written for an answer, by nbgrader id
    problems: tuple[CellProblem, ...] = ()
    flag: str = ""
    sentence: str = ""


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
        cells, encoding = _cells(data)
        if sum(len(_cell_text(cell) or "") for cell in cells if _is_code(cell)) > MAX_CODE:
            raise Refused(
                "too large", f"The notebook holds more than {MAX_CODE // 1000} kB of code."
            )
    except Refused as trouble:
        return Source(flag=trouble.flag, sentence=str(trouble))
    code, problems = _code(cells)
    source = Source(code, _answers(cells), _code_beside(cells), problems)
    if not code:
        return replace(source, flag="no code", sentence="No cell defines anything.")
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
    statements = compile_text(source.code).body
    return set().union(*map(bound_names, statements))


def is_stub(source: Source, function: str) -> bool:
    """Whether a function is still as it was handed out: nothing in it but a docstring, `...` or `pass`."""
    found = [node for node in compile_text(source.code).body
             if isinstance(node, ast.FunctionDef) and node.name == function]  # fmt: skip
    return bool(found) and all(_is_nothing(statement) for statement in found[-1].body)


def _is_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Raise) and statement.exc is not None:
        names = {node.id for node in ast.walk(statement.exc) if isinstance(node, ast.Name)}
        return names == {"NotImplementedError"}
    return isinstance(statement, ast.Pass)


def _cells(data: bytes) -> tuple[list[Any], str]:
    """The cells of a notebook in format 3 or 4, and its encoding. Raises Refused."""
    if not data.strip():
        raise Refused("empty", "The file is empty.")
    if len(data) > MAX_NOTEBOOK:
        raise Refused("too large", f"The file is larger than {MAX_NOTEBOOK // MB} MB.")
    text, encoding = _decode(data)
    try:
        notebook = json.loads(text)
    except RecursionError:
        raise Refused("not a notebook", "The file is nested too deeply.") from None
    except ValueError:
        raise Refused("not a notebook", NO_NOTEBOOK) from None
    cells = _listed_cells(notebook)
    if cells is None:
        raise Refused("not a notebook", "This file is not a notebook: it has no cells.")
    return cells, encoding


def _decode(data: bytes) -> tuple[str, str]:
    """Bytes as text, with the name of the encoding: UTF-8 as it should be, or the likeliest."""
    encoding = json.detect_encoding(data)  # by its first bytes: UTF-8, 16 or 32, mark or none
    try:
        return data.decode(encoding), encoding
    except UnicodeDecodeError:
        return data.decode("latin-1"), "latin-1"


def _listed_cells(notebook: Any) -> list[Any] | None:
    """The list of cells, which format 3 keeps in worksheets; None if this is not a notebook."""
    if not isinstance(notebook, dict):
        return None
    if isinstance(notebook.get("cells"), list):
        return notebook["cells"]
    sheets = notebook.get("worksheets")
    if not isinstance(sheets, list) or not sheets:
        return None
    lists = [sheet.get("cells") if isinstance(sheet, dict) else None for sheet in sheets]
    if not all(isinstance(cells, list) for cells in lists):
        return None
    return [cell for cells in lists for cell in cells]


def _is_code(cell: Any) -> bool:
    return isinstance(cell, dict) and cell.get("cell_type") == "code"


def _cell_text(cell: Any) -> str | None:
    """What is written in a cell, with \\n for every end of line; None if it holds no text."""
    if not isinstance(cell, dict):
        return None
    text = cell.get("source", cell.get("input"))  # format 3 calls code "input"
    if isinstance(text, list) and all(isinstance(line, str) for line in text):
        text = "".join(text)
    if not isinstance(text, str):
        return None
    return writable(text).replace("\r\n", "\n").replace("\r", "\n")


# --------------------------------------------------------------------------------------- definitions

DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
FILLING = (ast.For, ast.While, ast.With, ast.If, ast.Try, ast.AugAssign, ast.Assign)
PYTHON_CELL = re.compile(r"%%(time|capture)\b.*")  # cell magics around Python of the notebook
MAGIC = re.compile(
    r"""(?: [%!]                          # %matplotlib inline, !pip install
    |  [\w.,\ ]+ = \s* (?: ! | % \s* [a-z])  # files = !ls
    |  \?{1,2} [%!\w.*]+ $               # ?softmax
    |  [%\w.*]+ \?{1,2} $                # softmax??
    )""",
    re.VERBOSE,
)
MAX_MAGICS = 50  # lines in a cell: each costs a parse


def _code(cells: list[Any]) -> tuple[str, tuple[CellProblem, ...]]:
    """The definitions of all code cells in one text, and what was left out of them."""
    future, parts, problems = [], [], []
    for number, cell in enumerate(cells, start=1):
        if not _is_code(cell):
            continue
        text = _cell_text(cell)
        if text is None:
            problems.append(CellProblem(number, "left out, since it holds no text"))
            continue
        try:
            kept, lost = _definitions(text)
        except SyntaxError as error:
            place = f"line {error.lineno}: " if error.lineno else ""
            why = f"left out, since it is not valid Python ({place}{error.msg})"
            problems.append(CellProblem(number, writable(why)))
            continue
        problems += [CellProblem(number, message) for message in lost]
        # A notebook may import from __future__ in any cell, a module only at its top.
        future += [part for part in kept if part.startswith("from __future__")]
        kept = [part for part in kept if not part.startswith("from __future__")]
        if kept:
            parts.append("\n".join([f"# cell {number}", *kept]))
    text = "\n\n".join(["\n".join(dict.fromkeys(future)), *parts])
    return (f"{text.strip()}\n" if parts else ""), tuple(problems)


def _definitions(text: str) -> tuple[list[str], list[str]]:
    """The text of each definition in a cell, and a message for each that can not be kept.

    Raises:
        SyntaxError: the cell is not Python, or has what no module may have.
    """
    text, tree = _parse(text)
    lines = [line.encode() for line in text.split("\n")]
    kept = [statement_text(lines, node) for node in tree.body if _is_kept(node)]
    try:
        compile_text("\n".join(kept), whole=True)
    except SyntaxError as error:
        raise SyntaxError(error.msg) from None  # its line is not one of the cell
    lost = [message for node in tree.body if (message := _lost(node))]
    return kept, lost


def _is_definition(node: ast.stmt) -> bool:
    """An import, a function, a class, or an assignment to plain names (not `a.b = 1`, `a[0] = 1`)."""
    if isinstance(node, (*DEFINITIONS, *([ast.TypeAlias] if hasattr(ast, "TypeAlias") else []))):
        return True
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.target, ast.Name)
    if not isinstance(node, ast.Assign):
        return False
    names = (ast.Name, ast.Tuple, ast.List, ast.Starred, ast.expr_context)
    return all(isinstance(part, names) for target in node.targets for part in ast.walk(target))


def _is_kept(node: ast.stmt) -> bool:
    """A definition, or what may define or fill something: a loop, `a[0] = 1`, `a.append(1)`.

    What of it is run is decided when it is known what a function needs.
    """
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute)
    return _is_definition(node) or isinstance(node, FILLING)


def bound_names(node: ast.stmt) -> set[str]:
    """The names that a statement binds; `import *` binds none that can be told from here."""
    if isinstance(node, FILLING) and not isinstance(node, ast.Assign):
        inner = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.stmt)]
        inner += [part for handler in getattr(node, "handlers", ()) for part in handler.body]
        targets = [getattr(node, "target", None)]
        targets += [item.optional_vars for item in getattr(node, "items", ())]
        return set().union(*map(_stored, targets), *map(bound_names, inner))
    if isinstance(node, ast.Expr):
        return set()
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target] if node.value else []  # `b: int` alone binds nothing
    else:  # `type X = ...`, or nothing that binds
        targets = [getattr(node, "name", None)]
    return set().union(*map(_stored, targets))


def _stored(target: ast.expr | None) -> set[str]:
    """The names that an assignment to this binds: a[0] binds none."""
    parts = ast.walk(target) if target else ()
    return {
        part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    }


def _lost(node: ast.stmt) -> str:
    """A message if a statement that is left out, such as a `match`, would have defined something."""
    if _is_kept(node):
        return ""
    names = []
    for part in ast.walk(node):
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.append(part.name)
        elif isinstance(part, (ast.Import, ast.ImportFrom)):
            names += [alias.asname or alias.name for alias in part.names]
    if not names:
        return ""
    kind, listed = type(node).__name__.lower(), ", ".join(f"`{name}`" for name in names[:5])
    why = f"it defines {listed} inside a `{kind}`, where the grader does not look"
    return f"line {node.lineno} was left out, since {why}"


def statement_text(lines: list[bytes], node: Any) -> str:
    """A statement of a cell as it was written, from its first decorator on."""
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        return ast.unparse(node)  # in one spelling, by which it is known later
    first, start = node.lineno - 1, node.col_offset
    if getattr(node, "decorator_list", None):
        first, start = node.decorator_list[0].lineno - 1, 0
        while not lines[first].lstrip().startswith(b"@"):
            first -= 1
    last = node.end_lineno - 1
    taken = lines[first : last + 1]
    taken[-1] = taken[-1][: node.end_col_offset]
    taken[0] = taken[0][start:]
    return b"\n".join(taken).decode()


def _parse(text: str) -> tuple[str, ast.Module]:
    """The tree of a cell and the text it is of, in which each IPython line became `pass`.

    A line is taken for IPython's only where Python stumbles: `% b` may go on from a line before.

    Raises:
        SyntaxError: the cell is not Python.
    """
    first = text.lstrip().partition("\n")[0]
    if first.startswith("%%"):
        if not PYTHON_CELL.fullmatch(first):
            return "", ast.parse("")
        text = text.replace(first, "", 1)
    lines = text.split("\n")
    for _ in range(MAX_MAGICS):
        try:
            return "\n".join(lines), compile_text("\n".join(lines))
        except SyntaxError as error:
            at = (error.lineno or 0) - 1
            if not 0 <= at < len(lines) or not MAGIC.match(lines[at].strip()[:1000]):
                raise
            _pass_over(lines, at)
    raise SyntaxError(f"more than {MAX_MAGICS} lines are not Python")


def _pass_over(lines: list[str], at: int) -> None:
    """Put `pass` in the place of a line, and nothing in that of the lines that continue it."""
    goes_on = lines[at].endswith("\\")
    lines[at] = lines[at][: len(lines[at]) - len(lines[at].lstrip())] + "pass"
    while goes_on and at + 1 < len(lines):
        at += 1
        goes_on = lines[at].endswith("\\")
        lines[at] = ""


def compile_text(text: str, whole: bool = False) -> Any:
    """The syntax tree of a text; `whole` also checks what only shows later, such as a stray yield.

    Raises:
        SyntaxError: whatever is wrong, depth and null bytes included.
    """
    flags = 0 if whole else ast.PyCF_ONLY_AST
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in a student's string is not our warning
            return compile(text, "notebook", "exec", flags=flags, dont_inherit=True)
    except (RecursionError, MemoryError):
        raise SyntaxError("the code is nested too deeply") from None
    except ValueError as error:  # of null bytes, before Python 3.11.4
        raise SyntaxError(str(error)) from None


# ------------------------------------------------------------------------------------------- answers

HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*)")
FENCE = re.compile(r" {0,3}(```|~~~)")


def _answers(cells: list[Any]) -> dict[str, str]:
    """The markdown of a notebook: by nbgrader's id where there is one, else by the heading above."""
    found: dict[str, list[str]] = {}
    heading = ""
    for cell in cells:
        text = _cell_text(cell)
        if text is None or cell.get("cell_type") not in ("markdown", "heading"):
            continue
        if cell["cell_type"] == "heading":  # format 3
            heading = text.strip()
            continue
        sections = _sections(text, heading)
        heading = sections[-1][0]
        name = _nbgrader_id(cell)
        if name is not None:  # one answer as a whole, or with no name the words of a question
            sections = [(name, [text])] if name else []
        for title, lines in sections:
            found.setdefault(title, []).append("\n".join(lines).strip())
    joined = {name: "\n\n".join(filter(None, parts)) for name, parts in found.items()}
    return {name: text for name, text in joined.items() if text}


def _code_beside(cells: list[Any]) -> dict[str, str]:
    """The code that was written for each answer that nbgrader knows: under the same question's heading."""
    questions: list[tuple[list[str], list[str]]] = [([], [])]  # names of answers, texts of code
    for cell in cells:
        text = _cell_text(cell)
        if text is None:
            continue
        name = _nbgrader_id(cell)
        if _is_code(cell):
            if name != "" and not _holds_nothing(text):
                questions[-1][1].append(text.strip("\n"))
        elif name:
            questions[-1][0].append(name)
        elif name == "" and len(_sections(text, "")) > 1:
            questions.append(([], []))
    return {name: "\n\n\n".join(texts) for names, texts in questions for name in names if texts}


def _holds_nothing(text: str) -> bool:
    """Whether a cell is still as it was handed out: a comment, `...`, a setting such as `STEPS = 1500`."""
    try:
        return all(_is_nothing(node) or _is_setting(node) for node in compile_text(text).body)
    except SyntaxError:
        return False


def _is_setting(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and isinstance(
        statement.value, (ast.Constant, ast.Tuple)
    )


def _nbgrader_id(cell: dict) -> str | None:
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
