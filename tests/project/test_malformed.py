"""A sample of the malformed calls that tools/malformed.py makes; all of them run every week."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import malformed
from malformed_lenient import LENIENT, RECORDS

pytestmark = pytest.mark.plain_types
ROOT = Path(__file__).resolve().parents[2]


def test_a_sample_names_the_argument():
    calls = malformed.malformed_calls(sample=300, seed=15)
    found = list(malformed.results(calls, []))
    assert len(found) == len(calls) == 300
    wrong = [f"{r.outcome}: {r.call}: {r.said}" for r in found if r.outcome in malformed.WRONG]
    assert not wrong, "\n".join(wrong)
    named = sum(result.outcome == "names" for result in found)
    assert named > 0.9 * len(found)


def test_there_are_calls_for_every_argument():
    targets = malformed.targets()
    calls = [call for target in targets.values() for call in malformed.calls_of(target)]
    assert len(calls) >= 5000
    asked = {(call.label, call.argument) for call in calls}
    meant = {
        (t.label, name)
        for t in targets.values()
        for name in t.hints
        if t.hints[name] != malformed.Any
    }
    assert asked == meant


def outcome(call: str, name: str, wrong: str) -> str:
    target = malformed.targets([call])[call]
    found = [
        each for each in malformed.calls_of(target) if (each.argument, each.wrong) == (name, wrong)
    ]
    return malformed.outcome(target, found[0]).outcome


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda logits, k: logits, "silent"),
        (lambda logits, k: logits.topk(k), "inside"),
        (lambda logits, k: logits[k], "inside"),
        (lambda logits, k: k.real.missing, "exception"),
    ],
)
def test_outcomes_of_functions_that_check_nothing(monkeypatch, change, expected):
    target = malformed.targets(["top_k_filter"])["top_k_filter"]._replace(make=lambda: change)
    call = malformed.Call("top_k_filter", "k", "value", "-1")
    if expected == "inside":
        call = call._replace(kind="type", wrong="'x'")
    assert malformed.outcome(target, call).outcome == expected


def test_outcomes_of_functions_that_check():
    assert outcome("top_k_filter", "k", "0") == "names"
    assert outcome("top_k_filter", "k", "nothing") == "python"


def test_a_call_that_hangs_is_seen(monkeypatch):
    monkeypatch.setattr(malformed, "LIMIT", 0.0)
    calls = malformed.malformed_calls(["top_k_filter"])[:1]
    assert [result.outcome for result in malformed.results(calls, ["top_k_filter"])] == ["hangs"]


def test_every_lenient_rule_has_a_reason_and_a_call():
    calls = [str(c) for c in malformed.malformed_calls()]
    for rule, reason in LENIENT.items():
        assert len(reason) > 20, rule
        assert any(malformed.fnmatch.fnmatch(call, rule) for call in calls), rule


def test_records_are_classes_of_the_package():
    listed = {name for names in malformed.public_names().values() for name in names}
    assert listed | {"Look", "Picture", "NumberPicture", "SettingsPicture"} >= RECORDS


def test_make_and_the_weekly_workflow_run_it():
    weekly = (ROOT / ".github" / "workflows" / "weekly.yml").read_text()
    assert "run: make malformed" in weekly
    assert re.search(
        r"^malformed:.*\n\t.*tools/malformed\.py", (ROOT / "Makefile").read_text(), re.M
    )
