"""This book's own prose, as it was on one day: passages to search, and questions about them (chapter 22)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import NamedTuple

from ..shapes import checked

__all__ = ["Passage", "Question", "book_passages", "book_questions"]

FOLDER = Path(__file__).parent / "trained" / "book_search"
PASSAGES, QUESTIONS = FOLDER / "passages.jsonl.gz", FOLDER / "questions.json"


class Passage(NamedTuple):
    """A paragraph, the title of its page, and the nearest heading above it."""

    page: str
    heading: str
    text: str


class Question(NamedTuple):
    """A question, and what answers it: pairs of page and heading; None for a heading means the whole page."""

    text: str
    sections: list[tuple[str, str | None]]


@checked
def book_passages() -> list[Passage]:
    """The frozen copy that tools/freeze_book_text.py made, in the order of the table of contents.

    Source: the chapters of this book, on the day that the first line of the file names.
    """
    lines = gzip.decompress(PASSAGES.read_bytes()).decode().split("\n")
    return [Passage(**json.loads(line)) for line in lines[1:]]


@checked
def book_questions() -> list[Question]:
    """Questions that were written before anything had been searched for, each with the sections that answer it."""
    stored = json.loads(QUESTIONS.read_text(encoding="utf-8"))
    return [
        Question(q["text"], [(page, heading) for page, heading in q["sections"]]) for q in stored
    ]
