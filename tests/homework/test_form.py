"""The notebooks say the same things in the same way: what is allowed, hints, bug hunts, answers."""

import json
import re

import pytest
from course import ROOT

import chapters
import generate
from homework import notebook
from tested_transformer.homework.assignments import assignment, assignment_names
from tested_transformer.homework.submissions.slicing import needed_for
from tested_transformer.homework.tasks import Hunt, Written

pytestmark = pytest.mark.plain_types
NAMES = assignment_names()
TEXTS = {
    name: [
        "".join(cell["source"]) for cell in json.loads(notebook(name).read_text("utf-8"))["cells"]
    ]
    for name in NAMES
}
HERE = "here"  # introduced by the assignment itself, in bold
TERMS = {  # what a reader must know, and the chapter that says it
    "hw01": {"encoder state": 0, "attention weight": 1, "permutation": 1, "softmax": 1},
    "hw02": {"dot product": 2, "additive": 2, "standard deviation": 3, "variance": 3},
    "hw03": {
        "causal mask": 4, "bottom-right": 4, "padding mask": 4, "fully masked": 4, "left padding": HERE,
        "static cache": HERE, "empty slot": HERE,
    },
    "hw04": {"multi-head": 5, "grouped-query": 5, "kv head": 5, "packed projection": HERE},
    "hw05": {"sinusoid": 6, "relative position": 6, "frequency": 6, "clipped": 6, "interpolated": HERE},
    "hw06": {"pre-norm": 7, "post-norm": 7, "norm placement": 7, "relu": 8, "kink": HERE},
    "hw07": {"padding token": 4, "cross-entropy": 9, "label smoothing": 10, "pack": HERE},
    "hw08": {
        "temperature": 11, "top-k": 11, "top-p": 11, "speculative": 11, "min-p": HERE, "draft model": HERE,
        "target model": HERE, "attention sink": HERE,
    },
    "project": {"causal mask": 4, "cross-attention": 5, "decoder layer": 9, "teacher forcing": 10, "exact match": 10},
}  # fmt: skip
RUN_OR_NOT = (
    "A call on a line of its own, such as `torch.manual_seed(0)` or `print(scores)`, is not run, so put it inside "
    "the function if you need it. Two kinds of calls are run: those that change a variable which a graded function "
    "uses, such as `names.append(0)`, and those that set a library's default, such as "
    "`torch.set_default_dtype(torch.float64)`."
)


@pytest.mark.parametrize("name", NAMES)
def test_the_opening_says_what_is_allowed_and_how_it_is_marked(name):
    opening = TEXTS[name][0]
    for words in (
        "**What your code may use.** The grader runs your functions and tests with PyTorch, NumPy and "
        "Python's standard library.",
        RUN_OR_NOT,
        "**How it is marked.**",
        '"all caught" beside 0 points',
        f"{assignment(name).points} points and takes about",
    ):
        assert words in opening, words


def test_the_grader_runs_what_the_opening_says_it_runs():
    left_out, taken = (re.findall("`(.+?)`", text) for text in RUN_OR_NOT.split("Two kinds"))
    code = "import torch\nnames, scores = [], []\ndef f(): return names"
    for line in left_out:
        assert needed_for(f"{code}\n{line}\n", "f").splitlines()[-1] != line
    for line in taken:
        assert needed_for(f"{code}\n{line}\n", "f").splitlines()[-1] == line
    assert (len(left_out), len(taken)) == (2, 2)


@pytest.mark.parametrize("name", NAMES)
def test_headings_hints_and_examples_have_one_form(name):
    text = "\n\n".join(TEXTS[name])
    headings = re.findall(r"^## \S+ (.+)$", text, re.MULTILINE)
    for part, heading in zip(assignment(name).parts, headings, strict=True):
        assert heading.startswith("Bug hunt: ") == isinstance(part, Hunt), heading
        experiment = isinstance(part, Written) and part.kind == "experiment"
        assert heading.startswith("Experiment: ") == experiment, heading
    folds = re.findall(r"<summary>(.*?)</summary>", text)
    assert {fold for fold in folds if "int" in fold} <= {"Hint", "Hint 1", "Hint 2"}
    assert folds.count("Hint 1") == folds.count("Hint 2")
    assert not re.findall(r"[Bb]y pencil|[Aa]nother hint|[Ss]econd hint", text)
    assert "By hand: " in text


@pytest.mark.parametrize("name", NAMES)
def test_terms_are_in_the_chapter_or_a_deeper_page_that_is_named_or_introduced_there(name):
    text = "\n\n".join(TEXTS[name]).lower()
    for term, chapter in TERMS[name].items():
        if chapter == HERE:
            assert f"**{term}" in text, term
            continue
        assert chapter <= max(assignment(name).chapters), term
        assert term in text, term
        (core,) = (ROOT / "chapters").glob(f"{chapter:02}_*.ipynb")
        deeper = (ROOT / "chapters/deeper").glob(f"{chapter:02}_*.ipynb")
        named = [
            page for page in deeper if f'deeper page "{chapters.heading(page).lower()}"' in text
        ]
        assert any(term in page.read_text("utf-8").lower() for page in [core, *named]), term


def test_the_course_page_names_parts_as_the_notebooks_do():
    page = generate.course([assignment(name) for name in NAMES])
    headings = re.findall(
        r"^## (\S+ .+)$",
        "\n\n".join(text for every in TEXTS.values() for text in every),
        re.MULTILINE,
    )
    parts = sum(len(assignment(name).parts) for name in NAMES)
    assert len([each for each in headings if f"\n| {each} | " in page]) == parts


@pytest.mark.parametrize("name", NAMES)
def test_every_written_answer_begins_in_the_same_way(name):
    written = [
        text for text in TEXTS[name] if "### BEGIN SOLUTION" in text and text.startswith("**")
    ]
    assert len(written) == len(assignment(name).written)
    assert all(text.startswith("**Your answer.**\n\n### BEGIN SOLUTION\n") for text in written)
