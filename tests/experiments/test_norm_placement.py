"""The experiment of chapter 7: its task, its stack, and the record that the chapter plots."""

import json
import math
from pathlib import Path

import pytest
import torch

from tested_transformer.experiments import ch07_norm_placement as experiment
from tested_transformer.layers.residual import NORM_PLACEMENTS

RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "norm_placement.json"
STORED = json.loads(RECORD.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1, "eins"), (2, "zwei"), (10, "zehn"), (12, "zwölf"), (13, "drei zehn"), (16, "sech zehn"),
        (17, "sieb zehn"), (20, "zwanzig"), (21, "ein und zwanzig"), (30, "dreißig"),
        (100, "ein hundert"), (101, "ein hundert eins"), (216, "zwei hundert sech zehn"),
        (999, "neun hundert neun und neunzig"),
    ],
)  # fmt: skip
def test_morphemes(number, words):
    assert experiment.morphemes(number) == words.split()


def test_every_number_is_another_row_of_known_words():
    tokens, digits = experiment.task(torch.arange(1, 1000))
    assert tokens.shape == (999, experiment.LENGTH)
    assert len({tuple(row.tolist()) for row in tokens}) == 999
    assert (digits @ torch.tensor([100, 10, 1])).tolist() == list(range(1, 1000))
    seen, held_out = experiment.split()
    assert sorted([*seen.tolist(), *held_out.tolist()]) == list(range(1, 1000))


@pytest.mark.parametrize("norm_placement", NORM_PLACEMENTS)
def test_padding_changes_nothing(norm_placement):
    model = experiment.Stack(norm_placement, 2)
    tokens, _ = experiment.task(torch.tensor([7]))
    before = model(tokens)
    model.tokens.weight.data[0] += 1
    assert torch.equal(model(tokens), before)


@pytest.mark.parametrize("norm_placement", NORM_PLACEMENTS)
def test_gradients_at_the_start_are_as_stored(norm_placement):
    for depth in (2, 6):
        found = experiment.gradient_norms(norm_placement, depth, seed=1)
        stored = STORED["gradient_norms"][norm_placement][str(depth)][1]
        assert all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(found, stored, strict=True))


@pytest.mark.parametrize("norm_placement", NORM_PLACEMENTS)
def test_training_starts_as_stored(norm_placement):
    _, losses = experiment.train(norm_placement, 2, seed=1, stop=20)
    stored = next(
        run for run in STORED["runs"]
        if (run["norm_placement"], run["depth"], run["warmup"], run["seed"]) == (norm_placement, 2, 0, 1)
    )  # fmt: skip
    assert math.isclose(sum(losses) / 20, stored["loss"][0], rel_tol=1e-3)


def test_a_given_model_is_trained_in_place_of_a_new_one():
    model = experiment.Stack("pre", 2, seed=1)
    trained, losses = experiment.train("pre", 2, seed=1, stop=3, model=model)
    assert trained is model
    assert losses == experiment.train("pre", 2, seed=1, stop=3)[1]
    assert losses != experiment.train("pre", 2, seed=1, stop=3, model=model)[1]  # it has learned


def test_the_record_is_whole():
    cells = {(r["norm_placement"], r["depth"], r["warmup"], r["rate"]) for r in STORED["runs"]}
    assert STORED["seeds"] >= 3
    assert len(STORED["runs"]) == len(cells) * STORED["seeds"]
    assert all(len(r["share_right_without_layer"]) == r["depth"] for r in STORED["runs"])


def test_the_longer_training_starts_as_stored():
    record = json.loads((RECORD.parent / "norm_placement_longer.json").read_text(encoding="utf-8"))
    assert [run["seed"] for run in record["runs"]] == [0, 1, 2]
    run = record["runs"][1]
    _, losses = experiment.train("post", run["depth"], seed=1, steps=run["steps"], stop=20)
    assert math.isclose(sum(losses) / 20, run["loss"][0], rel_tol=1e-3)
