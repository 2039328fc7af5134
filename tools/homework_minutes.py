"""Estimate how long each part of an assignment takes, from the words and the code that it needs.

The estimate is of a student who has read the chapter and solves everything: the question is read
twice, the code is as long as the model solution, and the written answer as long as the model answer.
The rates are below. Usage: python tools/homework_minutes.py [NAME...]
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys

from homework import MARKER, notebook
from tested_transformer.homework.assignments import assignment, assignment_names
from tested_transformer.homework.tasks import Hunt, Task, Written

WORDS_READ = 100  # a minute: 200, and each question is read twice
CODE_READ = 8  # lines a minute, of code that is given
WORDS_WRITTEN = 10  # a minute, of an argument that has to be found first
LINES_WRITTEN = 0.5  # a minute, tried out and corrected; in a bug hunt and an experiment 1
THINKING = {"warm-up": 5, "core": 10, "challenge": 20}  # minutes, before a code task's first line
WRONG = 3  # minutes for each wrong implementation: read the clue, find an input that shows it
HEADING = re.compile(r"^## \S+ ", re.MULTILINE)


def estimates(name: str) -> list[int]:
    """The minutes of each part of an assignment, rounded up to five, in the notebook's order."""
    cells = json.loads(notebook(name).read_text(encoding="utf-8"))["cells"]
    sections: list[list[dict]] = []
    for cell in cells:
        if cell["cell_type"] == "markdown" and HEADING.search("".join(cell["source"])):
            sections.append([])
        if sections:
            sections[-1].append(cell)
    pairs = zip(sections, assignment(name).parts, strict=True)
    return [5 * math.ceil(_minutes(section, part) / 5) for section, part in pairs]


def _minutes(cells: list[dict], part: Task | Hunt | Written) -> float:
    read = written = code_read = code_written = 0
    for cell in cells:
        text = "".join(cell["source"])
        words, lines = len(text.split()), sum(bool(line.strip()) for line in text.split("\n"))
        if cell["metadata"]["nbgrader"]["solution"]:
            inside = MARKER.split(text)[2]
            if cell["cell_type"] == "markdown":
                written += len(inside.split())
            else:
                code_written += sum(
                    bool(line.strip()) and not line.lstrip().startswith("#")
                    for line in inside.split("\n")
                )
        elif cell["cell_type"] == "markdown":
            read += words
        elif "check(" not in text:
            code_read += lines
    minutes = read / WORDS_READ + code_read / CODE_READ + written / WORDS_WRITTEN
    if isinstance(part, Task):
        return minutes + THINKING[part.difficulty] + code_written / LINES_WRITTEN
    minutes += code_written / (2 * LINES_WRITTEN)
    return minutes + WRONG * len(part.mutants) if isinstance(part, Hunt) else minutes


def hours(minutes: int) -> str:
    """Half hours, rounded up, as the notebooks say them: 4, or 4½."""
    halves = math.ceil(minutes / 30)
    return f"{halves // 2}{'½' * (halves % 2)}"


def main() -> int:
    """Print the estimate beside the minutes that the assignment says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="such as hw03; all if none is given"
    )
    for name in parser.parse_args().names or assignment_names():
        homework, minutes = assignment(name), estimates(name)
        print(f"{name}: {sum(minutes)} minutes, about {hours(sum(minutes))} hours")
        for part, estimate in zip(homework.parts, minutes, strict=True):
            print(f"  {part.name:28} {estimate:3} estimated, {part.minutes:3} said")
    return 0


if __name__ == "__main__":
    sys.exit(main())
