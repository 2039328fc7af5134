"""The small BERT of chapter 12: its sentences, its weights in the package, and its stored rows."""

import json
from pathlib import Path

import pytest
import torch

from tested_transformer import minimal
from tested_transformer.experiments import ch12_masked as bert

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def stored(name: str) -> list[dict]:
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))["rows"]


def test_no_held_out_number_is_learned_from():
    known, held_out = bert.split_numbers()
    assert sorted(known + held_out) == list(bert.NUMBERS)
    assert len(held_out) == 200


def test_every_second_translation_is_of_another_number():
    known, _ = bert.split_numbers()
    ids, labels = bert.labeled_pairs(known, 60, torch.Generator().manual_seed(0))
    right = {tuple(row) for row in bert.encode([bert.words_of(n) for n in known]).tolist()}
    width = bert.LENGTH
    for row, label in zip(ids.tolist(), labels.tolist(), strict=True):
        whole = tuple(row[:width]) + (0,) * (width - len(row))
        assert (whole in right) == (label == 0)


def test_the_package_has_the_same_logits():
    torch.manual_seed(0)
    model = bert.masked_lm()
    for parameter in model.parameters():  # biases and norms as well
        torch.nn.init.normal_(parameter, std=0.3)
    ids = bert.encode([bert.words_of(7), bert.words_of(777)])
    real = ids != bert.PAD
    ours, theirs = model(ids, minimal.padding_mask(ids)), bert.in_package(model)(ids, real)
    torch.testing.assert_close(ours[real], theirs[real], rtol=1e-4, atol=1e-4)


def test_other_shares_choose_as_many_tokens_and_mask_them_all():
    ids = bert.sentences()
    known = {"mask_id": bert.MASK, "vocab_size": len(bert.WORDS), "shares": (1.0, 0.0)}
    inputs, labels = bert.mask_by_shares(
        ids, ids <= bert.CLS, torch.Generator().manual_seed(0), **known
    )
    assert ((labels != -100).sum(1) == 1).all()
    assert torch.equal(inputs == bert.MASK, labels != -100)


@pytest.mark.parametrize("std", [0.02, 0.18])
def test_an_untrained_row_is_the_stored_one(std):
    [row] = [
        row for row in stored("bert_pretraining")
        if (row["variant"], row["std"], row["seed"]) == ("none", std, 0)
    ]  # fmt: skip
    torch.manual_seed(0)
    model = bert.masked_lm(std=std)
    _, held_out = bert.split_numbers()
    for what in ("masked", "unchanged", "replaced"):
        assert abs(bert.restored(model, held_out, what) - row[what]) < 0.01


def test_stored_sizes_are_the_models_sizes():
    rows = {row["variant"]: row["parameters"] for row in stored("bert_sharing")}
    models = {
        "four layers": bert.masked_lm(4), "four, shared": bert.shared_masked_lm(),
        "one layer": bert.masked_lm(1),
    }  # fmt: skip
    found = {n: sum(p.numel() for p in model.parameters()) for n, model in models.items()}
    assert found == rows
