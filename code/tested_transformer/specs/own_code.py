"""What the judge reads in a candidate's own code: whether it is written, and which line raised."""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
import traceback
from types import FunctionType
from typing import Any

from ..reader.saved_parts import NotKept, functions_of, is_books, library_of, text_of

FILLER = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Pass


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
    except (NotKept, SyntaxError):  # a text in quotes can undo the indentation of what is inside
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
