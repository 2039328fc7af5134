"""The contract is judged: a right model keeps it, and each wrong one breaks the property that it names."""

import pytest

from tested_transformer.specs.contract import PROPERTIES, contract
from wrong_models import SOURCE, WRONG, right_model, right_translator

pytestmark = pytest.mark.plain_types


def test_a_right_model_keeps_the_contract():
    report = contract(right_model())
    assert report, report
    asked = {each.name for each in report.results if each.outcome == "holds"}
    asked_of_others = {"all ways to compute agree", "padding of the source does not matter"}
    assert asked == {each.name for each in PROPERTIES} - asked_of_others


def test_a_right_translator_keeps_the_contract():
    report = contract(right_translator())
    assert report, report
    source = report.results[[each.name for each in PROPERTIES].index(SOURCE)]
    assert source.outcome == "holds"


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_a_wrong_model_breaks_what_it_names(wrong):
    report = contract(wrong.make(), only=[wrong.breaks])
    assert [each.outcome for each in report.results] == ["broken"], report


def test_every_property_has_a_wrong_model():
    assert {wrong.breaks for wrong in WRONG} == {each.name for each in PROPERTIES}
    assert len(WRONG) >= 40
