"""What can be read off somebody's own code: its source, whose it is, whether it is written."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import sys
import textwrap
import traceback
from functools import lru_cache
from types import FunctionType
from typing import Any

PACKAGE = __package__.partition(".")[0]
OF_THE_BOOK = re.compile(r"^solved_|_solution$|Solution$")  # functions of its solution cells
FILLER = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Pass


class NoSource(Exception):
    """Why the source of a function cannot be read, as the end of a sentence."""


def name_of(function: Any) -> str:
    """What a function or a class is called, or the class of anything else."""
    return getattr(function, "__name__", type(function).__name__)


def is_books(name: str) -> bool:
    """Whether a function or a class is named as the book names its own solutions."""
    return not name.lower().startswith("my") and bool(OF_THE_BOOK.search(name))


def library_of(value: FunctionType | type) -> str:
    """The library in which a function or a class is defined; "" if it is the reader's."""
    owner = str(value.__module__).split(".")[0]
    return owner if owner in (PACKAGE, "torch", "numpy", *sys.stdlib_module_names) else ""


def is_def(value: Any) -> bool:
    """Whether it is a function written with def or lambda, no class."""
    return isinstance(value, FunctionType)


def functions_of(value: FunctionType | type) -> list[FunctionType]:
    """The function itself, or every method of a class."""
    if is_def(value):
        return [value]
    methods = [getattr(m, "fget", None) or getattr(m, "__func__", m) for m in vars(value).values()]
    return [f for f in map(inspect.unwrap, filter(callable, methods)) if is_def(f)]


@lru_cache(maxsize=8)  # a file has many functions, which are asked for in turn
def _definitions(source: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Every function and class in a source, the outer ones first."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]


def text_of(value: FunctionType | type) -> str:
    """The source, decorators included. A notebook's cells are found in linecache, as IPython puts them."""
    for function in functions_of(value):
        code = function.__code__
        lines = linecache.getlines(code.co_filename)
        try:
            definitions = _definitions("".join(lines))
        except SyntaxError:
            continue
        for node in definitions:
            same_kind = is_def(value) != isinstance(node, ast.ClassDef)
            if same_kind and node.name == value.__name__:
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                if first <= code.co_firstlineno <= node.end_lineno:
                    return at_margin("".join(lines[first - 1 : node.end_lineno]))
    raise NoSource(f"the source of {value.__name__} is not to be found; define it in a cell")


def at_margin(source: str) -> str:
    """Take the first line's indentation off every line that has it; a text in quotes may have less."""
    indent = re.match(r"[ \t]*", source).group()
    return "\n".join(line.removeprefix(indent) for line in source.rstrip().split("\n"))


def _own(candidate: Any) -> FunctionType | type | None:
    """The function or class behind a candidate, if no library has made it."""
    found = inspect.unwrap(candidate)
    found = found if isinstance(found, FunctionType | type) else type(found)
    return None if library_of(found) else found


def is_written(candidate: Any) -> bool:
    """Whether its source can be found and holds more than docstrings, and no `...` to be replaced."""
    own = _own(candidate)
    try:
        tree = ast.parse(text_of(own)) if own else ast.Module([], [])
    except (NoSource, SyntaxError):
        return False
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    values = [getattr(statement, "value", None) for statement in statements]
    constants = [value for value in values if isinstance(value, ast.Constant)]
    if any(constant.value is ... for constant in constants):
        return False
    return any(
        not isinstance(statement, FILLER)
        and not (isinstance(statement, ast.Expr) and statement.value in constants)
        for statement in statements
    )


def own_line(error: Exception, candidate: Any) -> str:
    """The candidate's last line on the way to an error, such as "line 3: `return x`", or "".

    Its lines are those of its cell or file: none of a library, and none of the book's solutions or of
    what these call.
    """
    own, found = _own(candidate), ""
    files = {function.__code__.co_filename for function in functions_of(own)} if own else ()
    for frame, number in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if any(is_books(name) for name in code.co_qualname.split(".")):
            break
        if code.co_filename in files:
            text = linecache.getline(code.co_filename, number).strip()
            short = textwrap.shorten(text, 100, placeholder=" ...")
            found = f"line {number}: `{short}`" if text else ""
    return found
