"""Keeping what a reader wrote: one readable file for each exercise that passed.

Nothing is kept unless the reader has opened a folder (`open_folder`). The files are Python source, to
be read, changed and deleted by hand; `OwnTransformer` is built from them.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import importlib
import inspect
import math
import os
import symtable
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from ..errors import argument_error
from ..specs.own_code import (
    NoSource,
    functions_of,
    is_books,
    is_def,
    library_of,
    name_of,
    text_of,
)
from .part_table import PART_EXERCISES

__all__ = ["open_folder"]

VARIABLE = "TESTED_TRANSFORMER_PARTS"  # names another folder; empty: no folder, whatever there is
FOLDER = "my_transformer"
HEADER = """\
# Exercise {name}: {function}, kept because it passed.
# The last function of this file is the part. Change it, and load_parts() judges it again."""
LATE = __future__.annotations.compiler_flag  # annotations that are not evaluated
MODULES = "torch torch.nn torch.nn.functional math numpy functools itertools tested_transformer"

# --- The folder -----------------------------------------------------------------------------------


def parts_folder() -> Path | None:
    """Where parts are kept: `my_transformer` beside the notebook, or what TESTED_TRANSFORMER_PARTS says.

    None if that variable is there and empty.
    """
    place = os.environ.get(VARIABLE, FOLDER)
    return Path(place) if place else None


def open_folder() -> Path:
    """Make the folder in which `check` keeps what passes; one that is there stays as it is.

    `make lab` makes it too. To keep nothing more, delete or rename the folder.

    Raises: ValueError if the variable TESTED_TRANSFORMER_PARTS is empty.
    Source: chapter 10, "Your own model".
    """
    folder = parts_folder()
    if folder is None:
        raise argument_error(
            ValueError, VARIABLE, "an empty one", "the name of a folder, or no variable"
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def keep_passed(name: str, function: Any) -> str | None:
    """Keep a function that passed, if a folder is open and the exercise is a part; say what was done.

    Never raises for what the function is: what cannot be kept is part of the sentence. None: there
    was nothing to do, as for the book's own solutions.
    """
    folder = parts_folder()
    if folder is None or not folder.is_dir():
        return None
    if name not in PART_EXERCISES or is_books(name_of(function)):
        return None
    path = folder / f"{name}.py"
    try:
        _write_part(path, source_of(name, function))
    except (NotKept, NoSource) as reason:
        return f"Not kept: {reason}.{_still_there(path)}"
    except Exception as error:  # the verdict is out: keeping must not take it back
        return f"Not kept: {type(error).__name__}: {error}.{_still_there(path)}"
    return f"Kept in {folder.name}/{path.name}."


def _still_there(path: Path) -> str:
    return " The version kept before stays." if path.exists() else ""


def _write_part(path: Path, text: str) -> None:
    """Write the file; what stood there, if it was another text, goes to a file that ends in .old."""
    if path.exists():
        before = path.read_bytes()
        if before == text.encode():
            return
        replace_whole(path.with_name(path.name + ".old"), before)
    replace_whole(path, text.encode())


def replace_whole(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file whole or not at all, with these permissions."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


# --- The source of a function and of all that it uses ---------------------------------------------


class NotKept(Exception):
    """Why a function cannot be kept, as the end of a sentence."""


def source_of(name: str, function: Any) -> str:
    """A file that makes this function anew: imports, constants, helpers, and the function last.

    Global names are followed: a module becomes an import, a function or class of the notebook is
    copied with all that it uses, a plain value becomes an assignment.

    Raises: NotKept or NoSource, a sentence that names what cannot be written down.
    """
    function = _check_own(function)
    found = _Gathered()
    found.define(function.__name__, function)
    start = HEADER.format(name=name, function=function.__name__) + found.future
    blocks = ["\n".join(sorted(found.imports)), "\n".join(found.constants)]
    return (
        "\n\n".join([start, *filter(None, blocks)])
        + "".join(f"\n\n\n{text}" for text in found.definitions)
        + "\n"
    )


def _check_own(function: Any) -> Any:
    """The function behind its decorators, if it is the reader's."""
    called = name_of(function)
    function = inspect.unwrap(function) if callable(function) else function
    if called == "<lambda>":
        raise NotKept("a lambda has no name to be kept under; write it with def")
    if not isinstance(function, FunctionType | type):
        raise NotKept(f"{called} is no function written with def")
    if owner := library_of(function):
        raise NotKept(f"{called} comes from {owner}; write one of your own")
    return function


@dataclass
class _Gathered:
    """What a file needs, in the order in which it was found."""

    future: str = ""
    imports: set[str] = field(default_factory=set)
    constants: list[str] = field(default_factory=list)
    definitions: list[str] = field(default_factory=list)
    known: dict[str, Any] = field(default_factory=dict)

    def need(self, name: str, value: Any) -> None:
        """Take care that the name means this value in the file."""
        if name in self.known:
            if not _same(self.known[name], value):
                raise NotKept(f"two different things are called `{name}`")
            return
        if isinstance(value, ModuleType):
            self.known[name] = value
            plain = value.__name__ == name
            self.imports.add(f"import {value.__name__}" + ("" if plain else f" as {name}"))
        elif (text := _plain(value)) is not None:
            self.known[name] = value
            self.constants.append(f"{name} = {text}")
        elif (line := _import_line(name, value)) is not None:
            self.known[name] = value
            self.imports.add(line)
        elif name_of(value) == "<lambda>":
            raise NotKept(f"it uses `{name}`, a lambda; write it with def")
        elif isinstance(inspect.unwrap(value), FunctionType | type):
            self.define(name, value)
        else:
            raise NotKept(f"it uses `{name}`, {_a(value)} of the notebook; make it inside")

    def define(self, name: str, value: Any) -> None:
        """Copy a function or a class, decorated or not, after all that it uses."""
        value = inspect.unwrap(value)
        own_name = value.__name__
        if own_name in self.known and not _same(self.known[own_name], value):
            raise NotKept(f"two different things are called `{own_name}`")
        self.known[name] = self.known[own_name] = value
        free = set(getattr(value.__code__, "co_freevars", ())) if is_def(value) else set()
        if free:
            raise NotKept(f"{own_name} uses `{min(free)}` of the function in which it was defined")
        text = text_of(value)
        scope = functions_of(value)[0].__globals__
        late = any(f.__code__.co_flags & LATE for f in functions_of(value))
        if late:
            self.future = "\nfrom __future__ import annotations"
        for each in sorted(_globals_in(text) - {own_name}):
            if each in scope:
                self.need(each, scope[each])
            elif not late and not hasattr(builtins, each):
                raise NotKept(f"{own_name} uses `{each}`, which is not defined")
        self.definitions.append(text + ("" if name == own_name else f"\n\n\n{name} = {own_name}"))


def _same(first: Any, second: Any) -> bool:
    return inspect.unwrap(first) is inspect.unwrap(second)


def _globals_in(text: str) -> set[str]:
    """The global names that a definition reads, in annotations and default values too."""
    top = symtable.symtable(text, "part", "exec")
    names = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_referenced()}
    tables = [*top.get_children()]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        names |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
    return names


def _plain(value: Any) -> str | None:
    """A number, a text or a container of such as source; None for anything else."""
    if type(value) is float and not math.isfinite(value):
        return f'float("{value}")'
    if type(value) not in (
        int,
        float,
        complex,
        bool,
        str,
        bytes,
        type(None),
        tuple,
        list,
        dict,
        set,
    ):
        return None
    try:
        return repr(value) if ast.literal_eval(repr(value)) == value else None
    except (ValueError, SyntaxError):
        return None


def _import_line(name: str, value: Any) -> str | None:
    """How to import this very object, from the module that it names or from a usual one."""
    own = getattr(value, "__module__", None)
    if own == "__main__":
        return None
    for module in [*([own] if isinstance(own, str) else []), *MODULES.split()]:
        for each in (getattr(value, "__name__", name), name):
            try:
                same = getattr(importlib.import_module(module), each, None) is value
            except Exception:
                same = False
            if same:
                return f"from {module} import {each}" + ("" if each == name else f" as {name}")
    return None


def _a(value: Any) -> str:
    kind = type(value).__name__
    return ("an " if kind[0].lower() in "aeiou" else "a ") + kind
