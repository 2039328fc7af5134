"""What the page shows once a GPU has been measured, on a record made up for the test."""

import json
import math
from pathlib import Path

import pytest

from tested_transformer.analysis.gpu_results import (
    read_gpu_results,
    results_table,
    tflops_by_length,
)

ROOT = Path(__file__).resolve().parents[2]


def row(method, length, tflops, **changes):
    plain = {"pass": "forward", "d": 128, "causal": False, "features": "", "spread": 1.0,
             "peak_bytes": 10}  # fmt: skip
    return {"method": method, "length": length, "tflops": tflops, **plain, **changes}


RECORD = {
    "made": {"device": "Made Up 1", "torch": "0.0", "date": "2026-01-01"},
    "rows": [
        row("ours", 4096, 300.4), row("ours", 1024, 200.0), row("sdpa", 4096, 310.0),
        row("ours", 1024, 9.0, causal=True), row("ours", 1024, 8.0, features="window"),
        row("ours", 1024, 150.0, **{"pass": "forward+backward"}),
    ],
}  # fmt: skip


def test_what_fits_is_taken_and_sorted():
    lengths, found = tflops_by_length(RECORD, d=128, causal=False, direction="forward")
    assert lengths == [1024, 4096]
    assert found["ours"] == [200.0, 300.4]
    assert math.isnan(found["sdpa"][0])
    assert found["sdpa"][1] == 310.0


def test_the_table():
    lines = results_table(RECORD, d=128, causal=False).splitlines()
    assert lines[0] == "device Made Up 1, torch 0.0, date 2026-01-01"
    assert [line.split()[0] for line in lines if line] == [
        "device",
        "forward,",
        "ours",
        "sdpa",
        "forward+backward,",
        "ours",
    ]
    assert lines[3].split() == ["ours", "200", "300"]
    assert lines[4].split() == ["sdpa", "-", "310"]


def test_read(tmp_path):
    path = tmp_path / "attention_gpu.json"
    assert read_gpu_results(path) is None
    path.write_text(json.dumps(RECORD), encoding="utf-8")
    assert read_gpu_results(path) == RECORD


def test_the_stored_record_if_there_is_one_can_be_shown():
    record = read_gpu_results(ROOT / "benchmarks" / "results" / "attention_gpu.json")
    assert record is None or results_table(record, d=128, causal=False)


@pytest.mark.plain_types
def test_refused(tmp_path):
    empty = tmp_path / "empty.json"
    empty.write_text('{"made": {}, "rows": []}', encoding="utf-8")
    with pytest.raises(ValueError, match="path: expected a record with rows"):
        read_gpu_results(empty)
    with pytest.raises(TypeError, match="path: expected a Path"):
        read_gpu_results("x.json")
    with pytest.raises(ValueError, match='direction: expected "forward" or "forward'):
        tflops_by_length(RECORD, d=128, causal=False, direction="backward")
    with pytest.raises(ValueError, match="record: expected one with d 64"):
        tflops_by_length(RECORD, d=64, causal=False, direction="forward")
