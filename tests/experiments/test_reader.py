"""The experiment of chapter 2: its lists, its scores, and the record that the chapter prints."""

import json
import math
from pathlib import Path

import pytest
import torch

from tested_transformer.experiments import ch02_reader as experiment
from tested_transformer.functional.scoring import additive_scores, bilinear_scores, dot_scores

RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "reader.json"
STORED = json.loads(RECORD.read_text(encoding="utf-8"))["rows"]
GENERATOR = torch.Generator()


def test_every_answer_is_the_digit_of_its_label():
    labels, digits, asked, answers = experiment.lists(20, 12, GENERATOR.manual_seed(0))
    for row in zip(*(t.tolist() for t in (labels, digits, asked, answers)), strict=True):
        digit_of = dict(zip(*row[:2], strict=True))
        assert len(digit_of) == 12
        assert sorted(row[2]) == sorted(digit_of)
        assert [digit_of[label] for label in row[2]] == row[3]
    assert not torch.equal(labels, asked)


@pytest.mark.parametrize("name", ["dot", "bilinear", "additive"])
def test_scores_are_those_of_the_library(name):
    scores = experiment.new_reader(name, seed=0).scores
    query, key = torch.randn(2, 3, 32).double(), torch.randn(2, 5, 32).double()
    expected = {
        "dot": lambda: dot_scores(query, key, scale=1.0),
        "bilinear": lambda: bilinear_scores(query, key, scores.w.weight),
        "additive": lambda: additive_scores(
            query, key, scores.w_query.weight, scores.w_key.weight, scores.w_v.weight[0]
        ),
    }[name]()
    torch.testing.assert_close(scores(query, key), expected)


def test_only_attention_depends_on_earlier_states():
    *given, _ = experiment.lists(2, 5, GENERATOR.manual_seed(0))
    for name, reader in ((name, experiment.new_reader(name, 0)) for name in experiment.READERS):
        states = reader.read(*given[:2])
        doubled = torch.cat([2 * states[:, :-1], states[:, -1:]], dim=1)  # all but the last
        reader.read = lambda *_, states=doubled: states
        changed = reader(*given)
        reader.read = lambda *_, states=states: states
        assert torch.equal(changed, reader(*given)) == (reader.scores is None), name


def test_a_reader_is_the_same_for_a_seed_and_leaves_random_numbers_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, second, other = (experiment.new_reader("dot", seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first.label.weight, second.label.weight)
    assert not torch.equal(first.label.weight, other.label.weight)


def test_the_wide_reader_differs_from_the_narrow_one_only_in_its_mlp():
    narrow, wide = (
        experiment.new_reader(name, 0)
        for name in ("last state of 32", "last state of 32, wide MLP")
    )
    assert torch.equal(narrow.gru.weight_ih_l0, wide.gru.weight_ih_l0)
    assert [tuple(part.weight.shape) for part in wide.output[::2]] == [(256, 64), (10, 256)]


def test_the_record_is_whole():
    models = [*experiment.READERS, "last state of 32, cosine"]
    assert {(row["model"], row["seed"]) for row in STORED} == {
        (name, seed) for name in models for seed in range(3)
    }
    assert all(row["stopped"] for row in STORED)


def test_no_list_of_12_pairs_in_200_batches_is_a_validation_or_test_list():
    def keys(labels, digits):
        return {tuple(row) for row in torch.cat([labels, digits], dim=1).tolist()}

    kept = [keys(*experiment.lists(2000, 12, GENERATOR.manual_seed(n))[:2]) for n in (1, 2)]
    for seed in range(3):
        GENERATOR.manual_seed(seed)
        for _ in range(200):
            num_pairs = int(torch.randint(1, 13, (), generator=GENERATOR))
            labels, digits, *_ = experiment.lists(64, num_pairs, GENERATOR)
            assert num_pairs < 12 or not keys(labels, digits) & (kept[0] | kept[1])


def test_a_cosine_ends_at_a_learning_rate_of_zero():
    reader = experiment.new_reader("last state of 32", seed=0)
    rates = []
    step = experiment.train_on_batch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            experiment,
            "train_on_batch",
            lambda reader, optimizer, generator: (
                rates.append(optimizer.param_groups[0]["lr"]),
                step(reader, optimizer, generator),
            ),
        )
        experiment.train_with_cosine(reader, seed=0, batches=4)
    assert rates == pytest.approx([0.01 * (1 + math.cos(math.pi * n / 4)) / 2 for n in range(4)])


@pytest.mark.parametrize("name", ["dot", "last state of 32", "last state of 32, wide MLP"])
def test_training_starts_as_stored(name):
    reader = experiment.new_reader(name, seed=1)
    measured = experiment.train(reader, seed=1, batches=experiment.EVERY)
    stored = next(row for row in STORED if (row["model"], row["seed"]) == (name, 1))
    assert abs(measured[0] - stored["measured"][0]) < 0.01
