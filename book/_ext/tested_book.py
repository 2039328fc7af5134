"""What this book changes in Sphinx: figures numbered by chapter, folds by name, docstrings as plain text."""

import functools
import importlib
import re
from collections import Counter
from typing import Annotated, get_origin

from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode
from sphinx.util.typing import stringify_annotation


def number_by_chapter(app, env):
    """Number figures, tables and equations 3.1, 3.2 ... after the chapter's number in its file name.

    The table of contents is unnumbered, so Sphinx would count through the whole book, and a figure
    added to chapter 1 would rename those of chapter 4.
    """
    last = Counter()  # deeper pages sort after all chapters, and go on where theirs stopped
    for docname, kinds in sorted(env.toc_fignumbers.items()):
        chapter = re.match(r"chapters/(?:deeper/)?(\d+)_", docname)
        if not chapter:
            continue
        for kind, numbers in kinds.items():
            for label in numbers:
                last[chapter[1], kind] += 1
                numbers[label] = (int(chapter[1]), last[chapter[1], kind])


def read_plain(app, what, name, obj, options, lines):
    """Turn a docstring in plain text into reStructuredText, in place.

    Docstrings here are written to be read in a terminal: `name` is code, * and | are themselves, an
    indented block holds one item a line (`mask: boolean ...`), and "Raises: ..." begins a section.
    """
    lines[:] = [line for block in _blocks(lines) for line in (*_render(block), "")]


def _blocks(lines):
    """Cut at blank lines, at section headings, and where the indentation starts or ends."""
    block = []
    for line in lines:
        if block and (not line.strip() or _begins_block(line, block)):
            yield block
            block = []
        if line.strip():
            block.append(line)
    if block:
        yield block


def _begins_block(line, block):
    if block[0].lstrip().startswith(">>>"):
        return False
    if line.startswith(" "):  # a heading with text beside it goes on in the indented lines
        heading = SECTION.match(block[0])
        return not block[-1].startswith(" ") and not (heading and block[0][heading.end() :].strip())
    return block[-1].startswith(" ") or bool(SECTION.match(line))


def _render(block):
    if block[0].lstrip().startswith(">>>"):
        return block
    if not block[0].startswith(" "):
        heading = SECTION.match(block[0])
        if heading:
            block = [block[0][heading.end() :].strip(), *block[1:]]
        text = [_escape(line.strip()) for line in block if line]
        return [f"**{heading[1]}.**", *text] if heading else text
    items = []
    for line in block:
        if not items or (ITEM.match(line) and items[-1].endswith((".", ";", ":"))):
            items.append(line.strip())
        else:
            items[-1] += " " + line.strip()
    if len(items) == 1:
        return [_escape(items[0])]
    return [f"- {_escape(item)}" for item in items]


def name_folds(app, doctree, docname):
    """Say what is behind a fold. A cell that is folded whole is, below an exercise, its solution."""
    heading = ""
    for node in doctree.findall(lambda each: isinstance(each, nodes.section | HideCodeCellNode)):
        if isinstance(node, nodes.section):
            heading = node.next_node(nodes.title).astext()
            continue
        behind = FOLDS[node["prompt_show"].rpartition(" ")[2]]
        if behind == FOLDS["content"] and heading.startswith("Exercise"):
            behind = "the solution"
        node["prompt_show"], node["prompt_hide"] = f"Show {behind}", f"Hide {behind}"


def short_signature(app, what, name, obj, options, signature, returns):
    """Write ... for a default without a source form, which Sphinx could not read back, and bounds by name."""
    if not signature:
        return None  # a module, which later versions of Sphinx would not let have an empty one
    for text, alias in bounds_by_name().items():
        signature = signature.replace(text, alias)
    return re.sub(r"<(function|factory)[^>]*>+", "...", signature), returns


@functools.cache
def bounds_by_name():
    """What Sphinx writes for a bound, such as `PositiveInt`, and the name that the source has."""
    module = importlib.import_module("tested_transformer.bounds")
    aliases = [pair for pair in vars(module).items() if get_origin(pair[1]) is Annotated]
    texts = {stringify_annotation(alias, "smart"): name for name, alias in aliases}
    return dict(sorted(texts.items(), key=lambda pair: -len(pair[0])))


FOLDS = {
    "content": "the code and its output",
    "source": "the code",
    "outputs": "the output",
    "output": "the output",
}
SECTION = re.compile(r"(Shapes|Returns|Raises|Source|Example|Note):(?=\s|$)")
ITEM = re.compile(r" +[A-Za-z_][\w, ]*: ")
CODE = re.compile(r"(:[\w:]+:`[^`]+`|``[^`]+``|`[^`]+`)")


def _escape(line):
    """Keep reStructuredText from reading *, | and a final _ as markup, outside of `code`."""
    parts = CODE.split(line)
    parts[::2] = [re.sub(r"([*|\\]|_(?!\w))", r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [f"`{part}`" if part[0] == "`" != part[1] else part for part in parts[1::2]]
    return "".join(parts)


def setup(app):
    """Register the hooks."""
    app.connect("env-check-consistency", number_by_chapter)
    app.connect("doctree-resolved", name_folds)
    app.connect("autodoc-process-docstring", read_plain)
    app.connect("autodoc-process-signature", short_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
