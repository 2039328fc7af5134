"""The experiment of chapter 18: what its tasks ask, what counts as right, what is stored."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tested_transformer.experiments.ch13_counting import counting_vocabulary
from tested_transformer.experiments.ch18_lengths import (
    D_HEAD,
    IGNORED,
    LENGTHS,
    LETTERS,
    SCHEMES,
    TASKS,
    TRAINED,
    counted_right,
    counting_sample,
    latest_right,
    latest_sample,
    measure_lengths,
    rotary_for,
    scheme_model,
    train_lengths,
    use_scheme,
)
from tested_transformer.positions.rotary import RotaryPositions
from tested_transformer.positions.sinusoidal import frequencies

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "lengths.json"


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("length", LENGTHS)
def test_the_answer_is_the_last_of_four_digits(length):
    ids, labels = latest_sample(50, length, rng())
    assert ids.shape == labels.shape == (50, length)
    for row, asked in zip(ids.tolist(), labels.tolist(), strict=True):
        digits = [token for token in row[:-2] if token >= LETTERS]
        assert len(digits) == 4
        assert asked == [IGNORED] * (length - 1) + [digits[-1]]


def test_counting_goes_on_by_one_and_asks_for_all_after_the_first_number():
    words = counting_vocabulary()
    (comma,) = words.encode([","])
    ids, labels = counting_sample(20, 40, rng())
    for row, asked in zip(ids.tolist(), labels.tolist(), strict=True):
        first = row.index(comma) + 1
        assert asked == [IGNORED] * first + row[first:]


def logits_for(ids, vocabulary):
    """Those of a model that knows each next token."""
    return torch.nn.functional.one_hot(ids[:, 1:], vocabulary).double()


@pytest.mark.parametrize("task", TASKS)
def test_a_model_that_knows_all_has_all_right(task):
    sample, measure, size = TASKS[task]
    ids, labels = sample(30, 40, rng())
    assert measure(logits_for(ids, size), ids, labels) == 1.0


def test_one_wrong_token_makes_one_number_wrong():
    (comma,) = counting_vocabulary().encode([","])
    ids, labels = counting_sample(1, 40, rng())
    ends = [i for i, token in enumerate(ids[0].tolist()) if token == comma]
    inside = [(a, b) for a, b in pairwise(ends) if a + 1 >= 20]
    logits = logits_for(ids, len(counting_vocabulary()))
    logits[0, inside[0][0]] = 0.0  # the first token of the first number of the last half
    logits[0, inside[0][0], comma] = 1.0
    assert counted_right(logits, ids, labels) == pytest.approx(1 - 1 / len(inside))
    early = logits_for(ids, len(counting_vocabulary()))
    early[0, :5] = 0.0
    assert counted_right(early, ids, labels) == 1.0


def test_the_wrong_digit_is_wrong():
    ids, labels = latest_sample(10, 20, rng())
    logits = logits_for(ids, TASKS["latest"][2])
    assert latest_right(logits.roll(1, -1), ids, labels) == 0.0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_models_differ_in_their_positions_alone(scheme):
    """All weights but those of positions have the same shapes; each model takes the longest row."""
    model, plain = scheme_model(scheme, 13).eval(), scheme_model("none", 13)
    weights = {name: tensor.shape for name, tensor in model.named_parameters()}
    others = {name: tensor.shape for name, tensor in plain.named_parameters()}
    assert others.items() <= weights.items()
    assert all("position" in name for name in weights.keys() - others.keys())
    with torch.no_grad():
        assert model(torch.zeros(1, max(LENGTHS), dtype=torch.long)).isfinite().all()


def test_order_reaches_every_scheme():
    """Two tokens of the past exchanged: another prediction, of any scheme, in two layers."""
    for scheme in SCHEMES:
        torch.manual_seed(0)
        model = scheme_model(scheme, 13).eval()
        if scheme == "T5 buckets":
            torch.nn.init.normal_(model.layers[0].attention.positions.table)
        with torch.no_grad():
            one, other = (model(torch.tensor([ids])) for ids in ([1, 2, 3, 4], [2, 1, 3, 4]))
        assert not torch.allclose(one[0, -1], other[0, -1]), scheme


def test_a_longer_row_slows_rotary_positions_and_the_trained_length_does_not():
    plain = frequencies(D_HEAD, 10000.0)
    for name, scheme in rotary_for(TRAINED).items():
        torch.testing.assert_close(scheme._frequencies(), plain, msg=name)
    for name, scheme in rotary_for(80).items():
        divided = plain / scheme._frequencies()
        torch.testing.assert_close(
            divided[-1], torch.tensor(4.0 if name != "rotary" else 1.0).double()
        )
        assert (divided[0] == 1) == (name != "rotary, interpolated")


def test_a_short_training_is_the_same_twice_and_a_scheme_can_be_exchanged():
    first, second = (train_lengths("latest", "rotary", 0, steps=4) for _ in range(2))
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )
    shares = measure_lengths(first, "latest", (20,))
    use_scheme(second, RotaryPositions(D_HEAD, layout="halves"))
    assert 0.0 <= shares[0] <= 1.0
    ids = torch.arange(8)[None]
    assert not torch.allclose(first(ids), second(ids))


def test_three_seeds_of_every_scheme_are_stored():
    stored = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    assert sorted((row["task"], row["scheme"], row["seed"]) for row in stored) == sorted(
        (task, scheme, seed) for task in TASKS for scheme in SCHEMES for seed in range(3)
    )
    for row in stored:
        wanted = set(rotary_for(TRAINED)) if row["scheme"] == "rotary" else {row["scheme"]}
        assert set(row["right"]) == wanted
        assert all(len(shares) == len(LENGTHS) for shares in row["right"].values())
