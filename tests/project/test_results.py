"""What the benchmarks stored: made by a script that is there, and dated; nothing half written."""

import json
import math
import re
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
RESULTS = sorted((BENCHMARKS / "results").iterdir())


def numbers(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from numbers(each)
    elif isinstance(value, int | float):
        yield value


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_a_record_says_what_it_is_and_when_it_was_made(path):
    record = json.loads(path.read_text(encoding="utf-8"))
    made = record.get("made", record)
    assert path.suffix == ".json"
    assert (BENCHMARKS / f"{path.stem}.py").is_file()
    assert len(record["what"]) > 30
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", made["date"])
    assert made["torch"].startswith("2.")
    assert "x86" in (made.get("processor") or made["device"])
    assert all(map(math.isfinite, numbers(record)))


@pytest.mark.parametrize(
    "name", [path.stem for path in RESULTS if "rows" in json.loads(path.read_text("utf-8"))]
)
def test_no_row_stands_twice(name):
    rows = json.loads((BENCHMARKS / "results" / f"{name}.json").read_text("utf-8"))["rows"]
    keys = (
        "family",
        "wrong",
        "task",
        "model",
        "segmentation",
        "variant",
        "without",
        "method",
        "scheme",
        "mixer",
        "heads",
        "steps",
        "lr",
        "seed",
        "std",
        "load",
        "order",
        "draft",
        "length",
    )
    named = [tuple(row.get(key) for key in keys) for row in rows]
    assert rows
    assert len(set(named)) == len(named)


def test_a_class_gets_the_same_marks_on_a_busy_machine():
    rows = json.loads((BENCHMARKS / "results" / "grading.json").read_text(encoding="utf-8"))["rows"]
    idle, busy = sorted(rows, key=lambda row: row["load"])
    assert (idle["load"], busy["load"]) == (0, 8)
    assert idle["submissions"] == busy["submissions"] == 30
    assert idle["marks"] == busy["marks"]
    assert idle["seconds"] < 180
