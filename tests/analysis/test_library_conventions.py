"""The table of conventions, each cell by a call of its own; the leak of chapter 4."""

import math

import pytest
import torch

from tested_transformer.analysis.library_conventions import LIBRARIES, QUESTIONS, compare_libraries
from tested_transformer.experiments import ch04_leak as leak

PLAIN, SDPA, WITH, WITHOUT, OURS = LIBRARIES


@pytest.fixture(scope="module")
def answers():
    return compare_libraries().answers


def test_polarity(answers):
    row = answers["True means"]
    assert {name for name in row if row[name] == "may attend"} == {SDPA, OURS}


def test_alignment(answers):
    row = answers["causal flag, 1 query and 4 keys"]
    assert row[OURS] == "bottom-right (4 of 4 keys)"
    assert row[SDPA] == "top-left (1 of 4 keys)"
    assert row[WITH] == "alone refused; beside a right mask bottom-right (4 of 4 keys)"
    assert row[WITHOUT] == "alone refused; beside a right mask top-left (1 of 4 keys)"


def test_dtypes(answers):
    assert set(answers["boolean mask"].values()) == {"taken"}
    row = answers["float mask"]
    assert {name for name in row if row[name] == "added to the scores"} == {SDPA, WITH, WITHOUT}
    assert set(answers["uint8 mask"].values()) == {"refused"}


def test_empty_rows(answers):
    expected = ["NaN", "zeros", "NaN", "its output bias", "zeros"]
    assert list(answers["output of a fully masked row"].values()) == expected
    good = "finite, zero for its query"
    expected = ["NaN: value", good, "NaN: query, key, value", good, good]
    assert list(answers["gradients with a fully masked row"].values()) == expected


def test_shapes(answers):
    row = {
        name: answer.replace("\N{NO-BREAK SPACE}", " ").split("; ")
        for name, answer in answers["mask shapes taken"].items()
    }
    assert all("L S" in shapes and "B S" not in shapes for shapes in row.values())
    assert row[WITH] == row[WITHOUT] == ["L S", "(B H) L S"]
    assert row[SDPA] == row[OURS]


def test_the_table_in_markdown():
    lines = compare_libraries().markdown.splitlines()
    assert len(lines) == len(QUESTIONS) + 2
    assert len({line.count(" | ") for line in lines[2:]}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_leaking_predictor_learns_to_copy_and_can_not_translate(seed):
    rows = leak.sentences()
    model, loss = leak.train(causal=False, seed=seed)
    assert loss < leak.FLOOR / 30
    assert leak.teacher_forced_accuracy(model, rows) == 1
    assert not (leak.translate(model, rows) == rows).all(1).any()
    assert (model.weights().diagonal(1) > 0.9).all()


@pytest.mark.slow
def test_a_causal_predictor_stays_above_the_floor_and_translates():
    rows = leak.sentences()
    model, loss = leak.train(causal=True)
    assert leak.FLOOR < loss < leak.FLOOR + 0.1
    assert (leak.translate(model, rows) == rows).all()


def test_the_floor_is_the_entropy_of_the_next_word():
    """No causal predictor beats the frequencies of what follows each beginning."""
    rows, total = leak.SENTENCES, 0.0
    for sentence in rows:
        for place in range(1, len(sentence)):
            alike = [other for other in rows if other[:place] == sentence[:place]]
            right = sum(other[place] == sentence[place] for other in alike)
            total -= math.log(right / len(alike))
    assert math.isclose(total / (len(rows) * 6), leak.FLOOR)
    assert torch.equal(torch.tensor(leak.sentences().shape), torch.tensor([72, 7]))
