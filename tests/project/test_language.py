"""The field's words in American English: no text of the book uses a phrase that is never right.

`language.yml` has the phrases, each with what to write; the few places that may use one, each with the
reason; and pages that are not held to it yet. American spelling is codespell's: see pyproject.toml.
"""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from chapters import chapter_paths

ROOT = Path(__file__).resolve().parents[2]
TABLE = yaml.safe_load((ROOT / "tests/data/language.yml").read_text(encoding="utf-8"))
PROSE = ("*.md", "book/*.md", "book/interview/*.md")
COMMENT = re.compile(r"(?:^|\s)#:? (.*)$")


class Text(NamedTuple):
    """A piece of text: its file, and the line or cell where it begins."""

    file: str
    place: str
    text: str


class Hit(NamedTuple):
    """A phrase that is never right, where it stands, and what to write."""

    file: str
    place: str
    found: str
    write: str

    def __str__(self) -> str:
        return f"{self.file}, {self.place}: “{self.found}”, write: {self.write}"


@cache
def patterns() -> tuple[re.Pattern, list[str]]:
    """All phrases as one pattern with a group for each, and what to write for each.

    Whole words, with any white space between them.
    """
    entries = TABLE["never"]
    every = "|".join("(" + entry["phrase"].replace(" ", r"\s+") + ")" for entry in entries)
    whole = rf"(?<![\w-])(?:{every})(?![\w-])"
    return re.compile(whole, re.IGNORECASE), [entry["write"] for entry in entries]


def hits(text: Text) -> Iterator[Hit]:
    """What is wrong in a piece of text."""
    every, write = patterns()
    for found in every.finditer(text.text):
        words = " ".join(found[0].split())
        yield Hit(text.file, line_of(text, found.start()), words, write[found.lastindex - 1])


def line_of(text: Text, start: int) -> str:
    """The line of a hit, counted from the beginning of its text."""
    before, _, number = text.place.rpartition("line ")
    return f"{before}line {int(number) + text.text.count(chr(10), 0, start)}"


# ------------------------------------------------------------------------------------ what is read


def of_python(file: str, source: str, first: int = 1, cell: str = "") -> Iterator[Text]:
    """Every string of a Python source, docstrings and parts of f-strings included, and its comments."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a cell with a magic, an exercise with a gap
        yield Text(file, f"{cell}line {first}", source)
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield Text(file, f"{cell}line {first + node.lineno - 1}", node.value)
    for number, line in enumerate(source.splitlines(), first):
        if comment := COMMENT.search(line):
            yield Text(file, f"{cell}line {number}", comment[1])


def of_notebook(file: str, cells: list[dict]) -> Iterator[Text]:
    """Prose, captions, alt texts, and the strings and comments of the code."""
    for number, cell in enumerate(cells, 1):
        place, source = f"cell {number}, ", "".join(cell["source"])
        if cell["cell_type"] == "code":
            yield from of_python(file, source, cell=place)
        else:
            yield Text(file, f"{place}line 1", source)
        shown = cell["metadata"].get("mystnb", {})
        for text in (shown.get("figure", {}).get("caption"), shown.get("image", {}).get("alt")):
            if text:
                yield Text(file, f"{place}figure, line 1", text)


def texts(root: Path = ROOT) -> Iterator[Text]:
    """Every text that a reader, a user or a student meets."""
    for path in sorted(p for folder in ("code", "tools") for p in (root / folder).rglob("*.py")):
        yield from of_python(name(path), path.read_text(encoding="utf-8"))
    for path in [*chapter_paths(root), *sorted((root / "homework/source").rglob("*.ipynb"))]:
        yield from of_notebook(name(path), json.loads(path.read_text(encoding="utf-8"))["cells"])
    for path in (p for glob in PROSE for p in sorted(root.glob(glob))):
        yield Text(name(path), "line 1", path.read_text(encoding="utf-8"))


def name(path: Path) -> str:
    """The name of a file in the repository."""
    return path.relative_to(ROOT).as_posix()


def matches(entry: dict, hit: Hit) -> bool:
    """Whether an entry of what is allowed is about this hit."""
    return fnmatch(hit.file, entry["file"]) and any(
        re.fullmatch(phrase, hit.found.lower()) for phrase in entry["found"]
    )


def allowed(hit: Hit) -> bool:
    """Whether the table allows a hit."""
    return any(matches(entry, hit) for entry in TABLE["allowed"])


@cache
def found() -> list[Hit]:
    """Everything that is found, allowed or not."""
    return [hit for text in texts() for hit in hits(text)]


# ------------------------------------------------------------------------------------ the tests


def test_no_text_uses_a_phrase_that_is_never_right():
    bad = [hit for hit in found() if not allowed(hit)]
    assert not bad, "\n" + "\n".join(map(str, bad))


def test_every_exception_is_needed():
    """An entry that allows nothing leaves the table."""
    for entry in TABLE["allowed"]:
        assert any(matches(entry, hit) for hit in found()), entry
        assert entry["reason"].strip()


@pytest.mark.parametrize("entry", TABLE["never"], ids=lambda entry: entry["phrase"])
def test_each_phrase_is_found_and_what_to_write_is_not(entry):
    examples = entry.get("finds") or [entry["phrase"]]
    for example in examples:
        for text in (example, f"({example.capitalize()},", example.replace(" ", "\n")):
            (hit,) = hits(Text("a.md", "line 1", text))
            assert hit.write == entry["write"]
    assert not list(hits(Text("a.md", "line 1", entry["write"])))


def test_a_hit_says_where_it_is():
    source = 'def f():\n    """One line.\n\n    It can\n    not be."""\n    g("a " f"key {1}" " head")  # can not\n'
    places = [(str(hit)) for text in of_python("a.py", source) for hit in hits(text)]
    assert places == [
        "a.py, line 4: “can not”, write: cannot",
        "a.py, line 6: “can not”, write: cannot",
    ]
    shown = {"mystnb": {"figure": {"caption": "An empty row."}, "image": {"alt": "A row."}}}
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": ["It\n", "can not."]},
        {"cell_type": "code", "metadata": shown, "source": '"at every place"'},
    ]
    places = [(hit.place, hit.found) for text in of_notebook("a", cells) for hit in hits(text)]
    assert places == [
        ("cell 1, line 2", "can not"),
        ("cell 2, line 1", "at every place"),
        ("cell 2, figure, line 1", "empty row"),
    ]


def test_british_spelling_is_found(tmp_path):
    british = ["behaviour", "colour", "normalise", "neighbour", "centre"]  # codespell:ignore
    page = tmp_path / "page.md"
    page.write_text("\n".join(british), encoding="utf-8")
    command = [sys.executable, "-m", "codespell_lib", str(page)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert [word for word in british if word not in done.stdout] == []
