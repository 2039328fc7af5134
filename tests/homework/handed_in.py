"""What the tests of the homework hand in, and what holds for all that is read of it."""

import ast
import io
import json
import zipfile

from hypothesis import strategies as st

from tested_transformer.homework.submissions.definitions import is_definition
from tested_transformer.homework.submissions.reading import Source, read_notebook


def code(*texts):
    """Code cells of format 4, as students' tools write them at the least."""
    return [{"cell_type": "code", "source": text} for text in texts]


def markdown(text, **nbgrader):
    metadata = {"metadata": {"nbgrader": nbgrader}} if nbgrader else {}
    return {"cell_type": "markdown", "source": text, **metadata}


def notebook(*cells, encoding="utf-8"):
    return json.dumps({"cells": cells, "nbformat": 4}, ensure_ascii=False).encode(encoding)


def read(*texts) -> Source:
    return read_notebook(notebook(*code(*texts)))


def zipped(files: dict) -> bytes:
    """A zip of names and bytes; a name may be a ZipInfo."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()


def write(root, files: dict):
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


GOOD = notebook(*code("def f(x):\n    return x"))
OTHER = notebook(*code("def f(x):\n    return 2 * x"))

PIECES = [
    "def f(x):", "    return x", "a = 1", "%time a", "!ls \\", "b = !ls", "a?", "@d", "class A:", "(",
    ")", "'''", "%%time", "%%bash", "x = (1", "% 2)", "if a:", "\\", "from __future__ import division",
    "from __future__ import annotations", "c = yield", "\f", "é = 1; b = 2", "\u2028", "\0", "\ud800", "",
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=6).map("\n".join)
junk = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
cells = st.fixed_dictionaries(
    {"cell_type": st.sampled_from(["code", "code", "markdown", "heading", "raw"]) | junk},
    optional={"source": texts | st.lists(texts) | junk, "input": texts | junk, "metadata": junk},
)


def is_sound(source: Source):
    """A flag with a sentence or neither; code that Python takes; text that can be written."""
    assert bool(source.flag) == bool(source.sentence)
    assert bool(source.code) == (source.flag in ("", "encoding", "damaged"))
    compile(source.code, "code", "exec", dont_inherit=True)
    statements = ast.parse(source.code).body
    assert all(is_definition(node) for node in statements)
    repr(source).encode()
