"""The definitions in a notebook's code cells, as text, and the names that they bind."""

from __future__ import annotations

import ast
import re
import symtable
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .cells import cell_text, is_code
from .finding import writable

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
MAX_CODE = 500_000  # characters of a notebook: their tree takes about 200 times as much memory
TOO_DEEP = "the code is nested too deeply"
MOST_DEPTH = 2000  # levels of a statement's tree; Python's own passes stop at 2,900, or earlier on a deep stack
MAX_MAGICS = 50  # lines in a cell: each costs a parse...
MAX_PARSED = 2_000_000  # ...and all of them together no more than this many characters


@dataclass(frozen=True)
class CellProblem:
    """Something that was left out of a notebook, and why."""

    cell: int  # from 1, counting cells of all kinds
    message: str  # what of it was left out and why, for its author: "left out, since ..."


def gathered_definitions(cells: list[Any]) -> tuple[str, tuple[CellProblem, ...]]:
    """The definitions of all code cells in one text, and what was left out of them.

    Of more code than is read of a notebook, the largest cells are left out.
    """
    future, parts, problems = [], [], []
    large = _too_large(cells)
    for number, cell in enumerate(cells, start=1):
        if not is_code(cell):
            continue
        text = cell_text(cell)
        if number in large:
            why = f"left out, since it holds {len(text) // 1000} kB of code, and of a notebook"
            problems.append(CellProblem(number, f"{why} {MAX_CODE // 1000} kB are read"))
            continue
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


def _too_large(cells: list[Any]) -> set[int]:
    """The numbers of the largest code cells, without which the others are no more than is read."""
    sizes = {
        n: len(cell_text(cell) or "") for n, cell in enumerate(cells, start=1) if is_code(cell)
    }
    left, most = set(), sum(sizes.values())
    for number in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if most <= MAX_CODE:
            break
        left.add(number)
        most -= sizes[number]
    return left


def _definitions(text: str) -> tuple[list[str], list[str]]:
    """The text of each definition in a cell, and a message for each that cannot be kept.

    Raises:
        SyntaxError: the cell is not Python, or has what no module may have.
    """
    text, tree = _parse(text)
    lines = [line.encode() for line in text.split("\n")]
    kept = [statement_text(lines, node) for node in tree.body if _is_kept(node)]
    try:
        for statement in kept:  # one by one: a compiler is quadratic in their number
            compile_text(statement, whole=True)
        if any(map(_is_too_deep, kept)):
            raise SyntaxError(TOO_DEEP)
    except SyntaxError as error:
        raise SyntaxError(error.msg) from None  # its line is not one of the cell
    lost = [message for node in tree.body if (message := _lost(node))]
    return kept, lost


def _is_too_deep(statement: str) -> bool:
    """Whether what looks through the statement later, level by level, may run out of stack.

    What Python's own passes take depends on how deep their caller stands: this bound does not.
    """
    if len(statement) <= MOST_DEPTH:  # a level takes a character
        return False
    level: list[ast.AST] = [compile_text(statement)]
    for _ in range(MOST_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return bool(level)


def is_definition(node: ast.stmt) -> bool:
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
    return is_definition(node) or isinstance(node, FILLING)


def bound_names(statement: ast.stmt) -> set[str]:
    """The names that a statement binds; `import *` binds none that can be told from here."""
    names: set[str] = set()
    waiting = [statement]  # a worklist: an `elif` stands inside the `if` before it
    while waiting:
        node = waiting.pop()
        names |= _bound_by(node)
        if isinstance(node, FILLING):
            waiting += [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.stmt)]
            waiting += [part for handler in getattr(node, "handlers", ()) for part in handler.body]
    return names


def _bound_by(node: ast.stmt) -> set[str]:
    """The names that a statement binds itself, without those inside it."""
    if isinstance(node, ast.Expr):
        return set()
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, FILLING):
        targets = [getattr(node, "target", None)]
        targets += [item.optional_vars for item in getattr(node, "items", ())]
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
    parses = max(2, min(MAX_MAGICS, MAX_PARSED // (len(text) + 1)))
    for _ in range(parses):
        try:
            return "\n".join(lines), compile_text("\n".join(lines))
        except SyntaxError as error:
            at = (error.lineno or 0) - 1
            if not 0 <= at < len(lines) or not MAGIC.match(lines[at].strip()[:1000]):
                raise
            _pass_over(lines, at)
    raise SyntaxError(f"more than {parses} lines are not Python")


def _pass_over(lines: list[str], at: int) -> None:
    """Put `pass` in the place of a line, and nothing in that of the lines that continue it."""
    goes_on = lines[at].endswith("\\")
    lines[at] = lines[at][: len(lines[at]) - len(lines[at].lstrip())] + "pass"
    while goes_on and at + 1 < len(lines):
        at += 1
        goes_on = lines[at].endswith("\\")
        lines[at] = ""


@lru_cache(maxsize=1)  # the same notebook is looked through for each part
def tree(code: str) -> ast.Module:
    """The syntax tree of a notebook's code, which nobody may change. Raises SyntaxError."""
    return compile_text(code)


def compile_text(text: str, whole: bool = False) -> Any:
    """The syntax tree of a text; `whole` also checks what only shows later, such as a stray yield.

    Raises:
        SyntaxError: whatever is wrong, depth and null bytes included.
    """
    flags = 0 if whole else ast.PyCF_ONLY_AST
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in a student's string is not our warning
            if whole:  # as it is looked through later: a compiler may go deeper than that
                symtable.symtable(text, "notebook", "exec")
            return compile(text, "notebook", "exec", flags=flags, dont_inherit=True)
    except (RecursionError, MemoryError):
        raise SyntaxError(TOO_DEEP) from None
    except ValueError as error:  # of null bytes, before Python 3.11.4
        raise SyntaxError(str(error)) from None


def is_nothing(statement: ast.stmt) -> bool:
    """Whether a statement does nothing: a docstring, `...`, `pass`, or a NotImplementedError."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Raise) and statement.exc is not None:
        names = {node.id for node in ast.walk(statement.exc) if isinstance(node, ast.Name)}
        return names == {"NotImplementedError"}
    return isinstance(statement, ast.Pass)
