"""The table of the model families: every failure has a note, and what a note shows can be seen."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import zoo_reproductions  # noqa: E402

RECORD = json.loads((BENCHMARKS / "results" / "zoo.json").read_text(encoding="utf-8"))
NOTES = yaml.safe_load((BENCHMARKS / "zoo_notes.yml").read_text(encoding="utf-8"))
KINDS = {"bug", "limitation", "documented", "unused part", "rounding"}


def test_every_failure_has_one_note_and_every_note_a_failure():
    failures = [(row["family"], name) for row in RECORD["rows"] for name in row["broken"]]
    noted = [
        (family, name)
        for note in NOTES
        for family in note["families"]
        for name in note["properties"]
    ]
    assert Counter(noted) == Counter(failures)
    assert {note["kind"] for note in NOTES} <= KINDS


def test_there_are_families_enough_and_each_was_asked_everything():
    assert len(RECORD["rows"]) >= 40
    asked = {tuple(row["properties"]) for row in RECORD["rows"]}
    assert len(asked) == 1


def test_every_bug_has_a_program():
    assert all(note.get("shown") for note in NOTES if note["kind"] == "bug")
    assert {name for note in NOTES for name in note.get("shown", [])} == set(
        zoo_reproductions.NAMES
    )


@pytest.mark.plain_types
@pytest.mark.parametrize("name", zoo_reproductions.NAMES)
def test_a_program_shows_the_bug(name):
    """When this fails, transformers has mended it: measure the zoo again."""
    expected, got = getattr(zoo_reproductions, name)()
    assert got != expected
    if expected == "0":
        assert float(got) > 1e-5  # far above float32's rounding of logits below 1
