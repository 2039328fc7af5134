"""The recall task of chapter 3: its lists, its model, and the runs that are stored."""

import json
from pathlib import Path

import pytest
import torch

from tested_transformer import attention
from tested_transformer.experiments.ch03_recall import Recall, recall_lists, train_recall

STORED = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "scale_training.json"


def test_an_answer_is_the_digit_beside_the_word_asked_for():
    words, digits, asked, answers = recall_lists(50, torch.Generator().manual_seed(0))
    for row, numbers, word, answer in zip(words, digits, asked, answers, strict=True):
        pairs = dict(zip(row.tolist(), numbers.tolist(), strict=True))
        assert len(pairs) == 10
        assert pairs[word.item()] == answer.item()


@pytest.mark.parametrize("scale", [1.0, 16**-0.5])
def test_its_weights_are_those_of_attention(scale):
    torch.manual_seed(0)
    model = Recall(16, scale).double()
    words, _, asked, _ = recall_lists(5, torch.Generator().manual_seed(0))
    query, key = model.query(model.words(asked)), model.key(model.words(words))
    value = torch.eye(10, dtype=torch.float64).expand(5, 10, 10)
    expected = attention(query, key, value, scale=scale).squeeze(1)
    torch.testing.assert_close(model.weights(words, asked), expected)


def test_queries_and_keys_start_with_unit_variance():
    torch.manual_seed(0)
    model = Recall(512, 1.0)
    for layer in (model.query, model.key):
        assert 0.9 < layer(model.words.weight).var().item() < 1.1


def test_projections_and_embeddings_can_have_their_own_learning_rates():
    """After one step of Adam every weight with a gradient has changed by about its learning rate."""
    torch.manual_seed(0)
    model = Recall(16, 1.0).double()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    train_recall(model, 0, 0, lr=0.01, projection_lr=0.0001, embedding_lr=0.001)
    change = {n: (w - before[n]).abs().max().item() for n, w in model.named_parameters()}
    for name in ("query.weight", "key.weight"):
        assert change[name] == pytest.approx(0.0001, rel=0.01)
    assert change["words.weight"] == pytest.approx(0.001, rel=0.01)
    assert change["output.weight"] == pytest.approx(0.01, rel=0.01)


def test_a_scaled_run_is_the_stored_one():
    rows = json.loads(STORED.read_text("utf-8"))["rows"]
    [row] = [r for r in rows if r["variant"] == "16, scaled, 0.01" and r["seed"] == 0]
    torch.manual_seed(0)
    history = train_recall(Recall(16, 16**-0.5).double(), 0, 50, lr=0.01)
    for name, curve in history.items():
        assert [round(value, 3) for value in curve] == row[name][:2]
