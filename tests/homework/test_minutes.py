"""The minutes that an assignment says are those of the estimate, which counts its words and its code."""

import json
import re

import pytest

from homework import notebook
from homework_minutes import estimates, hours
from tested_transformer.homework.assignments import assignment, assignment_names

NAMES = assignment_names()


@pytest.mark.parametrize("name", NAMES)
def test_a_part_says_at_least_the_minutes_that_its_words_and_code_need(name):
    homework = assignment(name)
    for part, estimate in zip(homework.parts, estimates(name), strict=True):
        assert part.minutes % 5 == 0, part.name
        assert estimate <= part.minutes <= estimate + 20, part.name


@pytest.mark.parametrize("name", NAMES)
def test_the_opening_says_the_hours_of_all_parts(name):
    cells = json.loads(notebook(name).read_text(encoding="utf-8"))["cells"]
    said = re.findall(r"takes about (\S+) hours", "".join(cells[0]["source"]))
    assert said == [hours(assignment(name).minutes)]


def test_a_longer_question_and_a_longer_answer_take_longer(tmp_path, monkeypatch):
    before = estimates("hw03")
    source = json.loads(notebook("hw03").read_text(encoding="utf-8"))
    words = "word " * 1000
    for cell in source["cells"]:
        text = "".join(cell["source"])
        if text.startswith("## 3.1 "):
            cell["source"] = text + words
        if cell["metadata"]["nbgrader"]["grade_id"] == "hw03-reach":
            cell["source"] = text.replace("### END", f"{words}\n### END")
    path = tmp_path / "hw03.ipynb"
    path.write_text(json.dumps(source), encoding="utf-8")
    monkeypatch.setattr("homework_minutes.notebook", lambda name: path)
    longer = [after - now for now, after in zip(before, estimates("hw03"), strict=True)]
    assert longer == [10, 0, 0, 0, 0, 0, 0, 100]


def test_hours_are_rounded_up_to_the_half():
    assert [hours(minutes) for minutes in (120, 121, 150, 151)] == ["2", "2½", "2½", "3"]
