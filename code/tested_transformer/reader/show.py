"""The package's own source on the page: what a reader sees is what runs."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
import sys
from pathlib import Path
from typing import Any

from ..errors import argument_error
from ..specs.own_code import NoSource, at_margin, text_of

PACKAGE = Path(__file__).resolve().parents[1]
NOTEBOOK = "this notebook"
LABELS = {"checked", "mistake"}  # decorators that say or check something of the code below them
SENTENCE_END = re.compile(r"""[.!?:]["')`]*$""")


class Listing:
    """Source code that a notebook shows as Markdown, and a terminal as text."""

    def __init__(self, blocks: list[tuple[str, str]]) -> None:
        self.blocks = blocks  # (place, source), neighbors from one place share its line

    @property
    def markdown(self) -> str:
        """The listing as Markdown: the place in bold, then the source in a fence."""
        lines = []
        for place, blocks in itertools.groupby(self.blocks, key=lambda block: block[0]):
            lines += [place, *(fenced(source) for _, source in blocks)]
        return "\n\n".join(lines)

    @property
    def text(self) -> str:
        """The listing as plain text: the place as a comment, then the source."""
        lines = []
        for place, blocks in itertools.groupby(self.blocks, key=lambda block: block[0]):
            lines += [f"# {place.replace('*', '').replace('`', '')}"]
            lines += [source + "\n" for _, source in blocks]
        return "\n".join(lines)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/markdown": self.markdown, "text/plain": self.text}

    def __repr__(self) -> str:
        return self.text


def show(*objects: Any, doc: bool = False) -> Listing:
    """Show the source of functions, classes and methods of this package or of the notebook.

    With `doc=False` each docstring is cut to its first sentence and all other lines stay as they
    are, without the decorators that only label or check it (`LABELS`); `doc=True` keeps everything.

    Raises: TypeError for what is no function, class or method (a module, a builtin, an instance);
    ValueError for code of another package, and where no source is to be found.
    """
    if not objects:
        raise argument_error(TypeError, "objects", "none", "at least one function, class or method")
    if not isinstance(doc, bool):
        raise argument_error(TypeError, "doc", type(doc).__name__, "True or False")
    blocks = []
    for thing in map(bare, objects):
        source = source_of(thing)
        shown = source if doc else first_sentences(without_labels(source))
        blocks.append((place_of(thing), shown))
    return Listing(blocks)


def bare(thing: Any) -> Any:
    """The function or class under decorators, properties, partial objects and compiled kernels.

    Raises: TypeError if there is none.
    """
    if isinstance(thing, property):
        thing = thing.fget
    elif isinstance(thing, functools.partial):
        thing = thing.func
    elif isinstance(thing, staticmethod | classmethod):
        thing = thing.__func__
    thing = inspect.unwrap(thing) if callable(thing) else thing
    if not inspect.isroutine(thing) and inspect.isfunction(getattr(thing, "fn", None)):
        thing = thing.fn  # a Triton kernel keeps its function here
    if inspect.ismodule(thing):
        came = f"the module {thing.__name__}"
    elif inspect.isfunction(thing) or inspect.ismethod(thing) or inspect.isclass(thing):
        return thing
    elif inspect.isroutine(thing):
        came = f"{thing.__name__}, which is not written in Python"
    else:
        came = f"an instance of {type(thing).__name__}"
    raise argument_error(
        TypeError, "objects", came, "functions, classes or methods with Python source"
    )


def place_of(thing: Any) -> str:
    """Where a reader finds it: `code/tested_transformer/...` or the notebook, as Markdown.

    Raises: ValueError if it belongs to another package.
    """
    path = file_of(thing)
    if path is not None and PACKAGE in path.parents:
        place = f"**`{(Path('code') / path.relative_to(PACKAGE.parent)).as_posix()}`**"
    elif thing.__module__ == "__main__":
        place = f"**{NOTEBOOK}**"
    else:
        came = f"{thing.__qualname__} from {thing.__module__}"
        raise argument_error(ValueError, "objects", came, "code of this package or of the notebook")
    owner, _, _ = thing.__qualname__.rpartition(".")
    return place if not owner or "<locals>" in owner else f"{place}, class `{owner}`"


def file_of(thing: Any) -> Path | None:
    """The file of a function or class; None for a class whose module has none (a notebook)."""
    if inspect.isclass(thing):
        name = getattr(sys.modules.get(thing.__module__), "__file__", None)
    else:
        name = thing.__code__.co_filename
    return None if name is None else Path(name).resolve()


def source_of(thing: Any) -> str:
    """The source of a function or class, moved to the left margin.

    Raises: ValueError if Python knows no source for it.
    """
    try:
        return text_of(thing)
    except NoSource:  # a lambda, or a class without methods
        pass
    try:
        return at_margin(inspect.getsource(thing))
    except (OSError, TypeError, SyntaxError) as error:
        came = f"{thing.__qualname__}, which has none"
        wanted = "something whose source is kept"
        raise argument_error(ValueError, "objects", came, wanted) from error


def without_labels(source: str) -> str:
    """The source without the decorators that are in `LABELS`, their arguments included."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a lambda from the middle of an expression: no decorator on it
        return source
    lines = source.split("\n")
    marks = [mark for node in ast.walk(tree) for mark in getattr(node, "decorator_list", [])]
    for mark in sorted(marks, key=lambda mark: -mark.lineno):  # from below: line numbers hold
        name = mark.func if isinstance(mark, ast.Call) else mark
        if isinstance(name, ast.Name) and name.id in LABELS:
            del lines[mark.lineno - 1 : mark.end_lineno]
    return "\n".join(lines)


def first_sentences(source: str) -> str:
    """Cut each docstring of the source to its first sentence; no other byte changes."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a lambda from the middle of an expression: no docstring in it
        return source
    data = source.encode()
    starts = [0, *itertools.accumulate(len(line) + 1 for line in data.split(b"\n"))]
    owners = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    docstrings = [
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, owners) and ast.get_docstring(node, clean=False) is not None
    ]
    for node in sorted(docstrings, key=lambda node: -node.lineno):  # from below: offsets hold
        first = starts[node.lineno - 1] + node.col_offset
        last = starts[node.end_lineno - 1] + node.end_col_offset
        data = data[:first] + first_sentence(data[first:last].decode()).encode() + data[last:]
    return data.decode()


def first_sentence(literal: str) -> str:
    """Cut one docstring, quotes included, at the first line that ends a sentence."""
    opening = re.match(r"""[rRuU]?(\"{3}|'{3})""", literal)
    if opening is None or "\n" not in literal:
        return literal
    quote = opening.group(1)
    kept = []
    for line in literal[opening.end() : -3].split("\n"):
        if any(kept) and not line.strip():
            break
        kept.append(line.rstrip())
        if SENTENCE_END.search(kept[-1]):
            break
    text = "\n".join(kept)
    return f"{opening.group()}{text}{' ' if text.endswith(quote[0]) else ''}{quote}"


def fenced(source: str) -> str:
    """Put source into a Markdown fence, longer than any run of backticks inside it."""
    longest = max(map(len, re.findall("`+", source)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{source}\n{fence}"
