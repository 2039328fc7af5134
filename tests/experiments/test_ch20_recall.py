"""What a d x d matrix returns of random pairs, against its theory; the trained models and what is stored of them."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from tested_transformer.experiments.ch20_recall import (
    COUNTS,
    MIXERS,
    RecallModel,
    expected_errors,
    random_pairs,
    read_back,
    read_errors,
    recall_accuracy,
    recall_task,
    recalled,
    train_recall_model,
)

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
TASKS = {"each key once": False, "keys written again": True}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# --- Without training -----------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["linear", "decayed", "delta"])
@pytest.mark.parametrize(("pairs", "d"), [(1, 4), (3, 2), (12, 8), (30, 8)])
def test_the_errors_are_those_of_the_theory(memory, pairs, d):
    """The means of 3,000 samples, within five of their standard errors."""
    keys, values = random_pairs(3000, pairs, d, generator())
    errors = (read_back(memory, keys, values) - values).square().sum(-1)[:, 0]  # T n
    expected = expected_errors(memory, pairs, d)
    deviation = errors.std(0) / len(errors) ** 0.5
    assert bool(((errors.mean(0) - expected).abs() <= 5 * deviation + 1e-12).all())
    torch.testing.assert_close(read_errors(read_back(memory, keys, values), values), errors.mean(0))


@pytest.mark.parametrize("pairs", [1, 5, 8])
def test_a_matrix_holds_d_pairs_exactly(pairs):
    keys, values = random_pairs(20, pairs, 8, generator(1))
    found = read_back("least squares", keys, values)
    torch.testing.assert_close(found, values)
    assert recalled(found, values) == 1.0
    assert not bool(expected_errors("least squares", pairs, 8).any())


def test_no_matrix_holds_more():
    """Values are projected on d of n directions: the mean error is 1 - d / n."""
    keys, values = random_pairs(2000, 12, 8, generator(2))
    errors = read_errors(read_back("least squares", keys, values), values)
    torch.testing.assert_close(
        errors.mean(), expected_errors("least squares", 12, 8).mean(), rtol=0.02, atol=0
    )


def test_orthogonal_keys_do_not_interfere():
    keys = torch.linalg.qr(torch.randn(3, 1, 8, 8, generator=generator(3)).double()).Q
    values = torch.randn(3, 1, 8, 8, generator=generator(4)).double()
    for memory in ("linear", "delta", "least squares"):
        torch.testing.assert_close(read_back(memory, keys, values), values)


def test_many_passes_of_the_delta_rule_are_least_squares():
    keys, values = random_pairs(5, 4, 8, generator(5))
    one, two, many = (
        read_back("delta", keys.repeat(1, 1, times, 1), values.repeat(1, 1, times, 1))[:, :, :4]
        for times in (1, 2, 100)
    )
    far = [float((read - values).square().sum()) for read in (one, two, many)]
    assert far[0] > far[1] > far[2]
    torch.testing.assert_close(many, values)


def test_a_memory_without_a_theory_is_refused():
    with pytest.raises(ValueError, match="memory: expected one of"):
        expected_errors("softmax", 4, 4)


# --- Trained --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rewrites", [False, True])
def test_the_task_asks_for_the_newest_value(rewrites):
    keys, values, answers = recall_task(50, 9, generator(6), rewrites=rewrites)
    for row in range(50):
        newest = dict(zip(keys[row].tolist(), values[row].tolist(), strict=True))
        assert answers[row].tolist() == [newest[key] for key in keys[row].tolist()]
        assert len(newest) == (5 if rewrites else 9)


@pytest.mark.parametrize("mixer", MIXERS)
def test_every_mixer_reads_what_is_written(mixer):
    """A value that is written changes an answer, and every parameter in use has a gradient."""
    torch.manual_seed(0)
    model = RecallModel(mixer)
    keys, values, answers = recall_task(2, 6, generator(7))
    logits = model(keys, values)
    functional.cross_entropy(logits.flatten(0, 1), answers.flatten()).backward()
    unused = {name for name, weight in model.named_parameters() if weight.grad is None}
    gates, factor, recency = {"gates.weight", "gates.bias"}, {"log_factor"}, {"recency"}
    expected = {
        "softmax attention": gates, "linear attention": gates | recency,
        "no feature map": factor | recency,
    }.get(mixer, factor | recency)  # fmt: skip
    assert unused == expected
    other = model(keys, (values + 1) % 64)
    assert bool(((logits - other).abs() > 1e-4).any())


def test_a_small_model_learns_four_pairs():
    torch.manual_seed(0)
    model = RecallModel("delta rule")
    before = recall_accuracy(model, 4, rewrites=False, count=50)
    train_recall_model(model, 0, 120, rewrites=False)
    assert recall_accuracy(model, 4, rewrites=False, count=50) > before + 0.2


def test_three_seeds_of_every_mixer_and_task_are_stored():
    stored = json.loads((RESULTS / "recall_capacity.json").read_text(encoding="utf-8"))["rows"]
    found = sorted((row["task"], row["mixer"], row["seed"]) for row in stored)
    assert found == sorted((t, m, s) for t in TASKS for m in MIXERS for s in range(3))
    for row in stored:
        assert list(row["right"]) == [str(pairs) for pairs in COUNTS]


def test_what_the_page_says_of_the_stored_runs():
    """Written once, the delta rule is no better than the sum; written again, by far."""
    stored = json.loads((RESULTS / "recall_capacity.json").read_text(encoding="utf-8"))["rows"]

    def runs(task, mixer, pairs):
        return [r["right"][pairs] for r in stored if (r["task"], r["mixer"]) == (task, mixer)]

    for pairs in ("16", "32", "48"):
        once = [runs("each key once", mixer, pairs) for mixer in ("no feature map", "delta rule")]
        assert abs(sum(once[0]) - sum(once[1])) / 3 < 0.03
        again = [runs("keys written again", m, pairs) for m in ("no feature map", "delta rule")]
        assert min(again[1]) > max(again[0]) + 0.3
        for task in TASKS:
            assert min(runs(task, "softmax attention", pairs)) > 0.99
