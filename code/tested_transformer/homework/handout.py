"""What students were handed: the numbers, titles and words of an assignment's questions, from its notebook.

The notebooks lie beside the package in the book's own folder. Where they are not, there are no questions,
and parts go by their names.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from .tasks import Assignment, Written

NOTEBOOKS = Path(__file__).resolve().parents[3] / "homework" / "source"
SOLUTION = re.compile(r"### BEGIN SOLUTION.*?### END SOLUTION", re.DOTALL)
# For an answer in words, below a line that begins in bold.
HANDED_OUT = "*Your answer here.*"
STUBS = ("# your code here", "...", HANDED_OUT)  # what nbgrader puts in the place of one
HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*)")
NUMBER = re.compile(r"((?:[0-9]+|P)\.[0-9]+)\b[.:]?\s*(.*)")


@dataclass(frozen=True)
class Question:
    """One part of a notebook: its number, its title, its words, and how often each of its lines is there."""

    number: str = ""
    title: str = ""
    text: str = ""
    lines: Counter[str] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        """3.1 Count without a table"""
        return f"{self.number} {self.title}".strip()


@dataclass(frozen=True)
class Handout:
    """The questions of an assignment by the part's name, and the lines that stand before the first one."""

    questions: dict[str, Question] = field(default_factory=dict)
    before: Counter[str] = field(default_factory=Counter)

    def title(self, part: str) -> str:
        """The number and the title of a part; its name where there is no notebook."""
        return self.questions[part].name if part in self.questions else part

    def text(self, part: str) -> str:
        """The words of a question; empty where there is no notebook."""
        return self.questions[part].text if part in self.questions else ""

    def part_of(self, heading: str) -> str | None:
        """The part that has this heading, by its number or else by its title; None if none has."""
        number, title = split_heading(heading)
        for name, question in self.questions.items():
            if number and number == question.number:
                return name
        alike = [n for n, q in self.questions.items() if _plain(title) == _plain(q.title)]
        return alike[0] if alike and not number else None


def split_heading(heading: str) -> tuple[str, str]:
    """A heading's number, if it has one, and its title."""
    match = NUMBER.match(heading.strip().strip("*"))
    return (match[1], match[2].strip()) if match else ("", heading.strip())


def _plain(title: str) -> str:
    return re.sub(r"\W+", " ", title).strip().lower()


@lru_cache(maxsize=16)
def handed_out(assignment: Assignment) -> Handout:
    """The questions of an assignment, as far as its notebook is there."""
    path = NOTEBOOKS / assignment.name / f"{assignment.name}.ipynb"
    if not path.is_file():
        return Handout()
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sections: list[list[dict]] = [[]]
    for cell in cells:
        text = "".join(cell["source"])
        heading = HEADING.match(text) if cell["cell_type"] == "markdown" else None
        if heading and NUMBER.match(heading[1]):
            sections.append([])
        sections[-1].append(cell)
    questions = {}
    for section in sections[1:]:
        name = _part_in(section, assignment)
        if name:
            questions[name] = _question(section)
    return Handout(questions, _lines(sections[0]))


def _part_in(section: list[dict], assignment: Assignment) -> str:
    """The part that a section of the notebook asks for."""
    ids = {cell["metadata"].get("nbgrader", {}).get("grade_id") for cell in section}
    text = "\n".join("".join(cell["source"]) for cell in section)
    for part in assignment.parts:
        if part.name in ids if isinstance(part, Written) else f'check("{part.name}"' in text:
            return part.name
    return ""


def _question(section: list[dict]) -> Question:
    asked = [c for c in section if c["cell_type"] == "markdown" and not _is_answer(c)]
    words = "\n\n".join("".join(cell["source"]) for cell in asked)
    heading, _, text = words.partition("\n")
    return Question(*split_heading(HEADING.match(heading)[1]), text.strip(), _lines(section))


def _is_answer(cell: dict) -> bool:
    return bool(cell["metadata"].get("nbgrader", {}).get("solution"))


def _lines(section: Iterable[dict]) -> Counter[str]:
    """The lines that students find in a section, and how often."""
    texts = [SOLUTION.sub("\n".join(STUBS), "".join(cell["source"])) for cell in section]
    lines = (line.strip() for text in texts for line in text.split("\n"))
    return Counter(filter(None, lines))
