"""Whether code refers to a library function that a task forbids, under whatever alias."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from ...errors import argument_error
from ..jail.worker import CONSTANTS, SHORT
from .definitions import tree
from .reading import Source

MAX_ROUNDS = 10  # over all assignments: an alias may be written above the name that it stands for


def uses(source: Source, name: str) -> bool:
    """Whether the code refers to a library function by its dotted name, under whatever alias.

    `name` may begin with F, nn or np in their usual sense. Seen are imports and their aliases,
    `from ... import *`, names given by assignment, getattr with a literal, and import_module and
    __import__ with a literal, anywhere in the code; importing alone is no use.

    Not seen: eval and exec, names put together at run time, `vars(F)[...]`, modules kept in lists,
    tuples or attributes, a module handed to a function as an argument, the same function under
    another of the library's names (such as torch._C._nn), and a library function that calls it
    inside. Where one name means two things in different places, both are assumed: a True deserves
    a look by a person.

    Raises:
        ValueError: `name` is not a dotted name.
        SyntaxError: the code of `source` is not Python, which no source read from a notebook is.
    """
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", name):
        raise argument_error(ValueError, "name", repr(name), "a dotted name such as F.softmax")
    first, _, rest = name.partition(".")
    names = _Names(f"{SHORT.get(first, first)}.{rest}")
    nodes = list(ast.walk(tree(source.code)))
    for node in nodes:
        names.add_import(node)
    for _ in range(MAX_ROUNDS):
        if not sum(names.add_assignment(node) for node in nodes):
            break
    read = [node for node in nodes if isinstance(getattr(node, "ctx", ast.Load()), ast.Load)]
    return any(names.target in names.meanings(node) for node in read)


class _Names:
    """What each name in a code may mean, as far as it matters for one target."""

    def __init__(self, target: str):
        self.target = target
        self.known: dict[str, set[str]] = {"__import__": {"__import__"}, "getattr": {"getattr"}}
        self.stars: set[str] = set()

    def matters(self, path: str) -> bool:
        """Whether a dotted path may lead to the target."""
        ends = (self.target, "importlib.import_module", "__import__", "getattr")
        return any(f"{end}.".startswith(f"{path}.") for end in ends)

    def add_import(self, node: ast.AST) -> None:
        """Note what an import binds."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                path = alias.name if alias.asname else alias.name.partition(".")[0]
                self.add(alias.asname or path, {path})
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if alias.name == "*" and self.matters(node.module):
                    self.stars.add(node.module)
                elif alias.name != "*":
                    self.add(alias.asname or alias.name, {f"{node.module}.{alias.name}"})

    def add_assignment(self, node: ast.AST) -> bool:
        """Note what an assignment binds; True if that was news."""
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value:
            targets = [node.target]
        else:
            return False
        meanings = self.meanings(node.value)
        return sum(self.add(t.id, meanings) for t in targets if isinstance(t, ast.Name)) > 0

    def add(self, name: str, paths: set[str]) -> bool:
        """Add meanings of a name; True if one was new. Paths that lead nowhere are dropped."""
        known = self.known.setdefault(name, set())
        new = {path for path in paths if self.matters(path)} - known
        known |= new
        return bool(new)

    def meanings(self, node: ast.AST | None, depth: int = 0) -> set[str]:
        """The dotted paths that an expression may stand for."""
        if depth > 20:  # longer than any path that matters: a tree may be deeper than our stack
            return set()
        if isinstance(node, ast.Name):
            return self.known.get(node.id, set()) | {f"{star}.{node.id}" for star in self.stars}
        if isinstance(node, ast.NamedExpr):
            return self.meanings(node.value, depth + 1)
        if isinstance(node, ast.Attribute):
            return {f"{path}.{node.attr}" for path in self.meanings(node.value, depth + 1)}
        return self.of_call(node, depth) if isinstance(node, ast.Call) else set()

    def of_call(self, node: ast.Call, depth: int) -> set[str]:
        """The paths that getattr, import_module or __import__ gives, where literals say so."""
        words = [arg.value if isinstance(arg, ast.Constant) else None for arg in node.args]
        function = self.meanings(node.func, depth + 1)
        if "getattr" in function and len(words) > 1 and isinstance(words[1], str):
            return {f"{path}.{words[1]}" for path in self.meanings(node.args[0], depth + 1)}
        if words and isinstance(words[0], str):
            if "importlib.import_module" in function:
                return {words[0]}
            if "__import__" in function:
                return {words[0].partition(".")[0]}
        return set()


# --------------------------------------------------------------------------------- the book's package


def borrowed(code: str) -> str:
    """What a function's code imports of this book's package, whose answers it may not use; "" for nothing.

    The numbers of PAD and the like are no answers. `code` holds what the function needs and nothing
    else, as `named_by` gives it.

    Raises: SyntaxError if the code is not Python.
    """
    nodes = list(ast.walk(tree(code)))
    named = {node.id for node in nodes if isinstance(node, ast.Name)}
    for node in nodes:
        module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
            seen = (alias.asname or alias.name.partition(".")[0]) in named or alias.name == "*"
            if seen and _is_ours(module + alias.name) and alias.name not in CONSTANTS:
                return module + alias.name
    return ""


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == __package__.partition(".")[0]


def not_allowed(code: str, forbidden: Iterable[str]) -> str:
    """The first thing that a function's code uses and may not: of the library, or of this package."""
    used = (name for name in forbidden if uses(Source(code), name))
    return next(used, "") or borrowed(code)
