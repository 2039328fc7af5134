"""The contract is judged: a right model keeps it, and each wrong one breaks the property that it names."""

import json
from pathlib import Path

import pytest
import torch

from tested_transformer.specs import contract as contract_module
from tested_transformer.specs.contract import PROPERTIES, contract, rounding_of
from wrong_models import (
    SOURCE,
    TRAIN,
    WRONG,
    model_that_drops_by_function,
    right_model,
    right_translator,
)

CATCHES = Path(__file__).parents[2] / "benchmarks" / "results" / "contract_catches.json"
pytestmark = pytest.mark.plain_types


def test_a_right_model_keeps_the_contract():
    report = contract(right_model())
    assert report, report
    asked = {each.name for each in report.results if each.outcome == "holds"}
    asked_of_others = {"all ways to compute agree", "padding of the source does not matter"}
    assert asked == {each.name for each in PROPERTIES} - asked_of_others


def test_what_rounding_does_to_a_model_is_found_once(monkeypatch):
    asked = []

    def counted(model, ids, dtype, **options):
        asked.append(dtype)
        return rounding_of(model, ids, dtype, **options)

    monkeypatch.setattr(contract_module, "rounding_of", counted)
    assert contract(right_model())
    assert sorted(map(str, asked)) == ["torch.bfloat16", "torch.float32"]


def test_a_right_translator_keeps_the_contract():
    report = contract(right_translator())
    assert report, report
    source = report.results[[each.name for each in PROPERTIES].index(SOURCE)]
    assert source.outcome == "holds"


def test_dropout_by_a_function_is_dropout():
    model = model_that_drops_by_function()
    training = [TRAIN, "checkpointing changes no gradient"]
    assert contract(model, only=training), contract(model, only=training)
    model.module.train()
    assert not torch.equal(*(model.logits(torch.tensor([[1, 2, 3]])) for _ in range(2)))


def test_nan_is_called_nan_and_no_proof_that_nothing_moved():
    wrong = next(each for each in WRONG if each.name == "a query whose keys are all masked is NaN")
    (single,) = contract(wrong.make(), only=["batch = single"]).results
    assert "NaN, as from a query whose keys are all masked" in single.what
    assert contract(wrong.make(), only=["the mask has an effect"])


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_a_wrong_model_breaks_what_it_names(wrong):
    report = contract(wrong.make(), only=[wrong.breaks])
    assert [each.outcome for each in report.results] == ["broken"], report


def test_every_property_has_a_wrong_model():
    assert {wrong.breaks for wrong in WRONG} == {each.name for each in PROPERTIES}
    assert len(WRONG) >= 40


def test_the_stored_table_of_catches_is_of_these_models():
    """If it is not: delete benchmarks/results/contract_catches.json and measure again."""
    rows = {row["wrong"]: row for row in json.loads(CATCHES.read_text(encoding="utf-8"))["rows"]}
    assert set(rows) == {wrong.name for wrong in WRONG}
    assert all(wrong.breaks in rows[wrong.name]["broken"] for wrong in WRONG)
