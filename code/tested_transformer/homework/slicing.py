"""The part of a notebook that one function needs: an experiment beside it is neither run nor searched."""

from __future__ import annotations

import ast

from .reading import bound_names, compile_text, statement_text

UNKNOWN = {"globals", "eval", "exec", "vars"}  # with these a name may be read without being written


def needed_for(code: str, function: str) -> str:
    """The statements that define a function and, step by step, all that they name, in their order.

    Whatever else the notebook holds, an experiment of minutes or a line that fails, stays out. If a
    statement reads names in a way that can not be seen, nothing is left out.

    Raises: SyntaxError if the code is not Python, which no code read from a notebook is.
    """
    statements = compile_text(code).body
    reads = [_read(statement) for statement in statements]
    binds = [_binds(statement) for statement in statements]
    chosen: set[int] = set()
    names = {function}
    while True:
        new = {i for i, bound in enumerate(binds) if bound & names or "*" in bound} - chosen
        if not new:
            break
        chosen |= new
        names |= set().union(*(reads[i] for i in new))
    if names & UNKNOWN:
        return code
    lines = code.encode().split(b"\n")  # columns count bytes
    kept = [statement_text(lines, statements[i]) for i in sorted(chosen)]
    return "\n".join(kept) + "\n"


def _read(statement: ast.stmt) -> set[str]:
    """Every name that a statement mentions, whatever for."""
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}


def _binds(statement: ast.stmt) -> set[str]:
    """The names that a statement defines; "*" if they can not be known, or change what all means."""
    if isinstance(statement, ast.ImportFrom):
        if statement.module == "__future__" or statement.names[0].name == "*":
            return {"*"}
    return bound_names(statement)


def is_stub(code: str, function: str) -> bool:
    """Whether a function is still as it was handed out: nothing in it but a docstring, `...` or `pass`.

    Raises: SyntaxError if the code is not Python.
    """
    found = [node for node in compile_text(code).body
             if isinstance(node, ast.FunctionDef) and node.name == function]  # fmt: skip
    return bool(found) and all(_is_nothing(statement) for statement in found[-1].body)


def _is_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Raise) and statement.exc is not None:
        names = {node.id for node in ast.walk(statement.exc) if isinstance(node, ast.Name)}
        return names == {"NotImplementedError"}
    return isinstance(statement, ast.Pass)
