"""The part of a notebook that one function needs: an experiment beside it is neither run nor searched."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator

from .definitions import compile_text, statement_text

UNKNOWN = {"globals", "eval", "exec", "vars"}  # with these a name may be read without being written


def needed_for(code: str, function: str) -> str:
    """The statements that define a function and, step by step, all that they name, in their order.

    Whatever else the notebook holds, an experiment of minutes or a line that fails, stays out, even if
    it has a variable called as a local one of the function. If a statement reads names in a way that
    cannot be seen, nothing is left out.

    Raises: SyntaxError if the code is not Python, which no code read from a notebook is.
    """
    text, names = _slice(code, function)
    return code if names & UNKNOWN else text


def named_by(code: str, function: str) -> str:
    """The same, of what can be seen: to be searched, where more would blame a function for an experiment.

    Raises: SyntaxError if the code is not Python.
    """
    return _slice(code, function)[0]


def _slice(code: str, function: str) -> tuple[str, set[str]]:
    """The statements, and every name that they read."""
    statements = compile_text(code).body
    lines = code.encode().split(b"\n")  # columns count bytes
    texts = [statement_text(lines, statement) for statement in statements]
    reads, binds = zip(*map(_names, texts), strict=True) if texts else ((), ())
    imported = set().union(*(b for s, b in zip(statements, binds, strict=True) if _imports(s)))
    binds = [b | _changes(s, imported) for s, b in zip(statements, binds, strict=True)]
    chosen: set[int] = set()
    names = {function}
    while True:
        new = {i for i, bound in enumerate(binds) if bound & names or "*" in bound} - chosen
        if not new:
            break
        chosen |= new
        names |= set().union(*(reads[i] for i in new))
    return "\n".join(texts[i] for i in sorted(chosen)) + "\n", names


def _imports(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.Import, ast.ImportFrom))


def _names(text: str) -> tuple[set[str], set[str]]:
    """The names of the notebook that a statement reads, and those that it binds."""
    tables = [symtable.symtable(text, "submission.py", "exec")]
    for table in tables:  # grows
        tables += table.get_children()
    reads, binds = set(), set()
    for table in tables:
        inside = table.get_type() == "function"
        for symbol in table.get_symbols():
            if symbol.is_global() or (not inside and symbol.is_referenced()):
                reads.add(symbol.get_name())
            if (table is tables[0] or symbol.is_declared_global()) and (
                symbol.is_assigned() or symbol.is_imported()
            ):
                binds.add(symbol.get_name())
    return reads, binds


def _changes(statement: ast.stmt, imported: set[str]) -> set[str]:
    """The names of what it changes: t[0] = 1, t.a = 1, t.append(1); "*" if it changes what all means."""
    if isinstance(statement, ast.ImportFrom):
        every = statement.module == "__future__" or statement.names[0].name == "*"
        return {"*"} if every else set()
    changed = set()
    for node in _executed(statement):
        if isinstance(node, (ast.Subscript, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
            changed.add(_owner(node))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            changed |= {_owner(node.value.func)} - imported  # for its effect; no torch.manual_seed
    return changed


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement, without the bodies of functions and classes."""
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _executed(child)


def _owner(node: ast.expr) -> str:
    """The name at the root of t.a[0].b, or nothing; a name alone is the root of nothing."""
    inner = node
    while isinstance(inner, (ast.Subscript, ast.Attribute)):
        inner = inner.value
    return inner.id if isinstance(inner, ast.Name) and inner is not node else ""
