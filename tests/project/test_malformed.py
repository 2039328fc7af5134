"""A sample of the malformed calls that tools/malformed.py makes; all of them run every week."""

from __future__ import annotations

import os
import re
from multiprocessing import Pipe
from pathlib import Path

import pytest

import malformed
from malformed_lenient import LENIENT, RECORDS

pytestmark = pytest.mark.plain_types
KEPT = []  # the other ends of pipes, so that they stay open
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
    calls = malformed.malformed_calls()
    assert len(calls) >= 5000
    asked = {(call.label, call.argument) for call in calls}
    for target in malformed.targets().values():
        for name, hint in target.hints.items():
            if hint not in (object, malformed.Any) or name in target.required:
                assert (target.label, name) in asked
    for rule, reason in LENIENT.items():
        assert len(reason) > 20, rule
        assert any(malformed.fnmatch.fnmatch(str(call), rule) for call in calls), rule


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
        (lambda logits, k: logits[len(logits)], "inside"),
        (
            eval(compile("lambda logits, k: k.missing", "tested_transformer/x.py", "eval")),
            "exception",
        ),
    ],
)
def test_outcomes_of_functions_that_check_nothing(change, expected):
    target = malformed.targets(["top_k_filter"])["top_k_filter"]._replace(make=lambda: change)
    call = malformed.Call("top_k_filter", "k", "type", "'x'")
    assert malformed.outcome(target, call).outcome == expected


def test_outcomes_of_functions_that_check():
    assert outcome("top_k_filter", "k", "0") == "names"
    assert outcome("top_k_filter", "k", "nothing") == "python"


class Endless:
    """A process that has begun a call and tells nothing more."""

    def __init__(self, **what):
        pass

    def start(self):
        pass

    def kill(self):
        pass


def test_a_call_that_hangs_is_seen(monkeypatch):
    monkeypatch.setattr(malformed.multiprocessing, "get_context", lambda way: Waiting)
    monkeypatch.setattr(malformed, "LIMIT", 0.0)
    calls = malformed.malformed_calls(["top_k_filter"])[:2]
    found = list(malformed.results(calls, ["top_k_filter"]))
    assert [(result.call, result.outcome) for result in found] == [(c, "hangs") for c in calls]


class Waiting:
    """Such processes, each with a pipe that holds its first word."""

    Process = Endless

    @staticmethod
    def Pipe(duplex):  # noqa: N802
        mine, theirs = Pipe(duplex)
        theirs.send("begins")
        KEPT.append(theirs)
        return mine, open(os.devnull)


def test_records_are_classes_of_the_package():
    names = malformed.public_names()
    listed = {name for module in names for name in names[module]}
    for module in malformed.MORE:
        listed |= set(malformed.importlib.import_module(module).__all__)
    assert listed >= RECORDS


def test_make_and_the_weekly_workflow_run_it():
    weekly = (ROOT / ".github" / "workflows" / "weekly.yml").read_text()
    assert "run: make malformed" in weekly
    assert re.search(
        r"^malformed:.*\n\t.*tools/malformed\.py", (ROOT / "Makefile").read_text(), re.M
    )
