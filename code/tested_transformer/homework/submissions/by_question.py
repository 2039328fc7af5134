"""What a notebook answers, question by question: found by nbgrader's ids, and by headings wherever it stands.

A student may type under the placeholder or below it, in a Markdown cell, a raw one, or a docstring; tools may
have taken the cells' metadata away. What was handed out is told from it line by line.
"""

from __future__ import annotations

import ast
import base64
import binascii
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..handout import HANDED_OUT, HEADING, Handout
from .answers import FENCE, holds_nothing, nbgrader_id
from .cells import cell_text, is_code
from .definitions import compile_text

PICTURES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}
MOST_PICTURES = 6  # of one answer
MOST_BASE64 = 400_000  # characters of one picture


@dataclass(frozen=True)
class Found:
    """By the part's name: words, code and pictures (as data: addresses). stray: words that answer no question."""

    words: dict[str, str] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)
    pictures: dict[str, tuple[str, ...]] = field(default_factory=dict)
    stray: tuple[str, ...] = ()


def answers_to(handout: Handout, cells: list[Any], written: set[str]) -> Found:
    """The answers to the questions named in `written`, and the words that stand elsewhere."""
    reader = _Reader(handout, written)
    for cell in cells:
        text = cell_text(cell)
        if text is not None:
            reader.read(cell, text)
    words = {name: "\n\n".join(texts) for name, texts in reader.words.items()}
    code = {name: "\n\n\n".join(texts) for name, texts in reader.code.items()}
    pictures = {
        name: tuple(found[:MOST_PICTURES]) for name, found in reader.pictures.items() if found
    }
    return Found(words, code, pictures, tuple(reader.stray))


class _Reader:
    """Goes through the cells in their order; knows under which question it is."""

    def __init__(self, handout: Handout, written: set[str]) -> None:
        self.handout, self.written = handout, written
        self.part = ""  # the question above; "" before the first one
        self.words: dict[str, list[str]] = {}
        self.code: dict[str, list[str]] = {}
        self.pictures: dict[str, list[str]] = {}
        self.stray: list[str] = []
        self.handed_out = {name: Counter(q.lines) for name, q in handout.questions.items()}
        self.handed_out[""] = Counter(handout.before)

    def read(self, cell: dict, text: str) -> None:
        """Take what a cell answers."""
        name = nbgrader_id(cell)
        if name in self.written:
            self.part = name
        if is_code(cell):
            self._read_code(cell, text)
        elif name in self.written:
            own = self._own_lines(text.split("\n"))  # its title is not, and stays above it
            self._add(text.replace(HANDED_OUT, "") if own.replace(HANDED_OUT, "").strip() else "")
        else:
            for part, lines in self._sections(text):
                self.part = part
                self._add(self._own_lines(lines))
        if self.part in self.written:
            self.pictures.setdefault(self.part, []).extend(_pictures(cell))

    def _read_code(self, cell: dict, text: str) -> None:
        own = self._own_lines(text.split("\n"))
        if not own or holds_nothing(text):
            said = _said(text)
            if said and own:
                self._add(said)
        elif self.part in self.written and nbgrader_id(cell) != "":
            self.code.setdefault(self.part, []).append(text.strip("\n"))

    def _sections(self, text: str) -> Iterator[tuple[str, list[str]]]:
        """The lines of a cell, with the question that each belongs to: only a question's heading ends one."""
        part, lines, fenced = self.part, [], False
        for line in text.split("\n"):
            fenced ^= bool(FENCE.match(line))
            match = None if fenced else HEADING.match(line)
            found = self.handout.part_of(match[1]) if match else None
            if found is None:
                lines.append(line)
                continue
            yield part, lines
            part, lines = found, []
            self.handed_out[found][line.strip()] -= 1
        yield part, lines

    def _own_lines(self, lines: list[str]) -> str:
        """The lines without those that were handed out, each as often as it was."""
        known, own = self.handed_out[self.part], []
        for line in lines:
            bare = line.strip()
            if bare and known[bare] > 0:
                known[bare] -= 1
            else:
                own.append(line)
        return "\n".join(own).strip()

    def _add(self, text: str) -> None:
        if not text.strip():
            return
        if self.part in self.written:
            self.words.setdefault(self.part, []).append(text.strip())
        else:
            self.stray.append(text.strip())


def _said(text: str) -> str:
    """What is said in a code cell that computes nothing: in strings that stand alone, or in comments."""
    try:
        body = compile_text(text).body
    except SyntaxError:
        return ""
    strings = [
        node.value.value.strip()
        for node in body
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    comments = [line.lstrip("# ") for line in text.split("\n") if line.startswith("#")]
    return "\n".join(strings or ([] if body else comments))


def _pictures(cell: dict) -> Iterator[str]:
    """The pictures that a cell shows or that were pasted into it, as data: addresses, PNG and JPEG alone."""
    outputs = cell.get("outputs")
    bundles = [o.get("data") for o in outputs if isinstance(o, dict)] if _is_list(outputs) else []
    pasted = cell.get("attachments")
    bundles += list(pasted.values()) if isinstance(pasted, dict) else []
    for bundle in bundles:
        for kind in ("image/png", "image/jpeg"):
            data = bundle.get(kind) if isinstance(bundle, dict) else None
            data = "".join(data) if _is_list(data) and all(map(_is_text, data)) else data
            if _is_text(data) and (address := _address("".join(data.split()))):
                yield address


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _address(data: str) -> str:
    """A data: address of a picture that begins as one does; empty for anything else, and for a large one."""
    if len(data) > MOST_BASE64:
        return ""
    try:
        begins = base64.b64decode(data, validate=True)[:8]
    except (binascii.Error, ValueError):
        return ""
    kind = next((kind for sign, kind in PICTURES.items() if begins.startswith(sign)), "")
    return f"data:{kind};base64,{data}" if kind else ""
