"""Written answers are found wherever a student puts them, and nothing that was handed out is taken for one."""

import base64
import json

import pytest
from course import ROOT, solution_cells

from tested_transformer.homework.assignments import assignment, assignment_names
from tested_transformer.homework.handout import SOLUTION, STUBS, handed_out
from tested_transformer.homework.submissions.by_question import MOST_PICTURES, answers_to
from tested_transformer.homework.tasks import Written

ANSWER = "Because every padded token\n\n$$\na\n$$\n\nstands after the words."
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(40)).decode()


def released(name="hw03"):
    """The notebook that students get, but for nbgrader's own marks in it."""
    path = ROOT / "homework" / "source" / name / f"{name}.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        is_words = cell["cell_type"] == "markdown"
        stub = STUBS[2] if is_words else "\n".join(STUBS[:2])
        cell["source"] = SOLUTION.sub(stub, "".join(cell["source"]))
    return notebook["cells"]


def bare(cells):
    return [{**cell, "metadata": {}} for cell in cells]


def below(cells, name, *new):
    """The cells, with new ones below the one of this id."""
    at = next(i for i, c in enumerate(cells) if c["metadata"]["nbgrader"]["grade_id"] == name)
    return [*cells[: at + 1], *new, *cells[at + 1 :]]


def typed(cells, name, text):
    """The cells, with a text in the place of the placeholder of one."""
    return [
        {**cell, "source": cell["source"].replace(STUBS[2], text)}
        if cell["metadata"]["nbgrader"]["grade_id"] == name
        else cell
        for cell in cells
    ]


def words(text, kind="markdown"):
    return {"cell_type": kind, "metadata": {}, "source": text, "outputs": []}


def found(cells, name="hw03"):
    homework = assignment(name)
    return answers_to(handed_out(homework), cells, {part.name for part in homework.written})


@pytest.mark.parametrize("name", assignment_names())
def test_every_part_has_a_question_with_a_number_and_a_title(name):
    homework, handout = assignment(name), handed_out(assignment(name))
    assert set(handout.questions) == {part.name for part in homework.parts}
    for number, part in enumerate(homework.parts, start=1):
        question = handout.questions[part.name]
        assert question.number.endswith(f".{number}")
        assert question.title
        assert len(question.text) > 100
        if isinstance(part, Written):
            solved = solution_cells(name)[part.name].splitlines()
            assert not any(len(line) > 60 and line in question.text for line in solved)


@pytest.mark.parametrize("name", assignment_names())
@pytest.mark.parametrize("strip", [list, bare])
def test_nothing_that_was_handed_out_is_an_answer(name, strip):
    got = found(strip(released(name)), name)
    assert (got.words, got.code, got.pictures, got.stray) == ({}, {}, {}, ())


IDS = [part.name for part in assignment("hw03").written]
PLACES = {
    "in the cell": lambda cells, name: typed(cells, name, ANSWER),
    "a new Markdown cell": lambda cells, name: below(cells, name, words(ANSWER)),
    "a raw cell": lambda cells, name: below(cells, name, words(ANSWER, "raw")),
    "a docstring": lambda cells, name: below(cells, name, words(f'r"""\n{ANSWER}\n"""', "code")),
    "a heading of its own": lambda cells, name: below(cells, name, words("## Mine\n\n" + ANSWER)),
    "no metadata": lambda cells, name: bare(typed(cells, name, ANSWER)),
    "a new cell, no metadata": lambda cells, name: bare(below(cells, name, words(ANSWER))),
    "raw, no metadata": lambda cells, name: bare(below(cells, name, words(ANSWER, "raw"))),
}


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("place", PLACES)
def test_an_answer_is_found_wherever_it_stands(name, place):
    got = found(PLACES[place](released(), name))
    assert set(got.words) == {name}
    assert ANSWER in got.words[name]
    assert STUBS[2] not in got.words[name]
    assert not got.stray


def test_an_answer_in_the_cell_of_the_question_is_found():
    cells = bare(released())
    question = next(c for c in cells if c["source"].startswith("## 3.6"))
    question["source"] += "\n\n" + ANSWER
    got = found(cells)
    assert (got.words, got.stray) == ({"hw03-only-causal": ANSWER}, ())


def test_words_beside_a_code_task_are_shown_as_such():
    cells = below(released(), "count-pairs", words("I counted by hand."), words("# so far", "code"))
    assert found(cells).stray == ("I counted by hand.", "so far")


def test_code_and_pictures_belong_to_their_question():
    output = {"output_type": "display_data", "data": {"image/png": [PNG[:9], PNG[9:]]}}
    bad = [
        {"data": {"image/png": value}}
        for value in ("no base64!", base64.b64encode(b"<svg>").decode(), 7, [1], PNG * 9000)
    ]
    drawn = {**words("print(1)", "code"), "outputs": [output, *bad, 3, {"data": 3}]}
    pasted = {**words("See:"), "attachments": {"a.png": {"image/png": PNG}, "b": 1}}
    got = found(below(released(), "hw03-experiment-code", drawn, pasted))
    assert got.code == {"hw03-reach": "print(1)"}
    assert got.words == {"hw03-reach": "See:"}
    assert got.pictures == {"hw03-reach": (f"data:image/png;base64,{PNG}",) * 2}
    many = {**drawn, "outputs": [output] * 50}
    pictures = found(below(released(), "hw03-experiment-code", many)).pictures
    assert len(pictures["hw03-reach"]) == MOST_PICTURES
