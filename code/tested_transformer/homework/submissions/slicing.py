"""The part of a notebook that one function needs: an experiment beside it is neither run nor searched."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator
from functools import lru_cache

from .definitions import statement_text, tree

UNKNOWN = {"globals", "eval", "exec", "vars"}  # with these a name may be read without being written
# What a notebook sets for all that it computes.
SETTERS = {
    "set_default_dtype", "set_grad_enabled", "set_flush_denormal", "set_float32_matmul_precision",
    "use_deterministic_algorithms", "seterr", "setrecursionlimit",
}  # fmt: skip


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

    Of a function that reads names by globals() and the like, the strings that may be names are seen too.

    Raises: SyntaxError if the code is not Python.
    """
    return _slice(code, function)[0]


def _slice(code: str, function: str) -> tuple[str, set[str]]:
    """The statements, and every name that they read."""
    texts, reads, binds = _statements(code)
    chosen, names = _follow(function, reads, binds)
    if names & UNKNOWN:
        words = map(_words, tree(code).body)
        chosen, names = _follow(function, [r | w for r, w in zip(reads, words, strict=True)], binds)
    return "\n".join(texts[i] for i in sorted(chosen)) + "\n", names


def _follow(
    function: str, reads: list[set[str]], binds: list[set[str]]
) -> tuple[set[int], set[str]]:
    """The numbers of the statements that a function needs, and every name that they read."""
    binding: dict[str, list[int]] = {}
    for number, bound in enumerate(binds):
        for name in bound:
            binding.setdefault(name, []).append(number)
    chosen: set[int] = set()
    names, waiting = {function}, ["*", function]
    while waiting:
        for number in binding.pop(waiting.pop(), ()):
            if number not in chosen:
                chosen.add(number)
                waiting += reads[number] - names
                names |= reads[number]
    return chosen, names


def _words(statement: ast.stmt) -> set[str]:
    """The strings in a statement that may be names, as in globals()["name"]."""
    values = {node.value for node in ast.walk(statement) if isinstance(node, ast.Constant)}
    return {value for value in values if isinstance(value, str) and value.isidentifier()}


@lru_cache(maxsize=1)  # each part of an assignment asks for the same notebook
def _statements(code: str) -> tuple[list[str], list[set[str]], list[set[str]]]:
    """The text of every statement, the names that it reads, and those that it binds or changes."""
    statements = tree(code).body
    lines = code.encode().split(b"\n")  # columns count bytes
    texts = [statement_text(lines, statement) for statement in statements]
    reads, binds = zip(*map(_names, texts), strict=True) if texts else ((), ())
    imported = set().union(*(b for s, b in zip(statements, binds, strict=True) if _imports(s)))
    changed = [_changes(statement, imported) for statement in statements]
    return texts, list(reads), [b | c for b, c in zip(binds, changed, strict=True)]


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
    if _is_setting(statement, imported):
        return {"*"}
    changed = set()
    for node in _executed(statement):
        if isinstance(node, (ast.Subscript, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
            changed.add(_owner(node))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            changed |= {_owner(node.value.func)} - imported  # for its effect; no torch.manual_seed
    return changed


def _is_setting(statement: ast.stmt, imported: set[str]) -> bool:
    """Whether a statement sets a library's default, as torch.set_default_dtype(torch.float64) does."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    plain = (ast.Constant, ast.Name, ast.Attribute)
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    of_library = call.func.attr in SETTERS and _owner(call.func) in imported
    return of_library and all(isinstance(value, plain) for value in given)


def _executed(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement, without the bodies of functions and classes."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        yield node
        waiting += ast.iter_child_nodes(node)


def _owner(node: ast.expr) -> str:
    """The name at the root of t.a[0].b, or nothing; a name alone is the root of nothing."""
    inner = node
    while isinstance(inner, (ast.Subscript, ast.Attribute)):
        inner = inner.value
    return inner.id if isinstance(inner, ast.Name) and inner is not node else ""
