"""The scripts for a half hour on a GPU: what can be wrong without one, and both at toy size."""

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import attention_gpu  # noqa: E402
import flash_tuning  # noqa: E402
import record  # noqa: E402

import gpu  # noqa: E402
from tested_transformer.functional.backends import flash_configs  # noqa: E402
from tested_transformer.functional.backends.flash_configs import Config  # noqa: E402

MACHINE = dict.fromkeys((*gpu.SAME, "processor"), "made up")
DIRECTIONS = ("forward", "forward+backward")


@pytest.fixture
def on_cpu(monkeypatch):
    """As if in the interpreter, but for the kernels."""
    monkeypatch.setattr(gpu, "DEVICE", "cpu")
    monkeypatch.setattr(gpu, "DTYPE", torch.float16)


def problem(**changes):
    plain = {"size": 16, "causal": True, "length": 24, "tokens": 48, "width": 64}
    return gpu.Problem(**{**plain, **changes})


# ---------------------------------------------------------------------------------- operations


@pytest.mark.parametrize("window", [1, 7, 24, 99])
def test_pairs_in_a_window_are_counted_one_by_one(window):
    row, col = torch.meshgrid(torch.arange(24), torch.arange(24), indexing="ij")
    seen = (col <= row) & (row - col < window)
    assert gpu.visible_pairs(24, True, window) == int(seen.sum())


def test_operations_as_everyone_counts_them():
    # 2 sequences, 4 heads, 24 x 24 pairs of 16 numbers; a product of n numbers is 2 n, and two
    # products make attention
    full = 2 * 4 * 24 * 24 * (2 * 16) * 2
    assert gpu.flops(problem(causal=False), "forward") == full
    assert gpu.flops(problem(), "forward") == full / 2
    assert gpu.flops(problem(causal=False), "forward+backward") == 3.5 * full
    assert gpu.flops(problem(causal=False, group=2), "forward") == full
    packed = problem(causal=False, documents=(8, 40))
    assert gpu.flops(packed, "forward") == 4 * (8**2 + 40**2) * (2 * 16) * 2


@pytest.mark.parametrize("packed", [(), (8, 40)], ids=["batched", "packed"])
def test_the_parts_are_everything_once(on_cpu, monkeypatch, packed):
    one = problem(documents=packed, group=2)
    monkeypatch.setattr(gpu, "MOST_SCORES", 3 * 2 * 24**2)
    query, key, _, _ = one.tensors()
    for q, k in one.parts(query, key):
        assert q.shape[1] == 2 * k.shape[1]
        q += 100
        k += 100
    assert float(query.min()) > 50 < float(key.min())
    assert float(query.max()) < 150 > float(key.max())


# -------------------------------------------------------------------------------- what is right


KINDS = pytest.mark.parametrize(
    "changes",
    [{}, {"causal": False}, {"group": 2}, {"window": 5}, {"documents": (8, 40)}],
    ids=str,
)


@KINDS
def test_truth_passes_what_is_right_and_names_what_is_wrong(on_cpu, changes):
    one = problem(**changes)
    tensors = one.tensors()
    truth = gpu.truth_of(one, tensors)
    right = [t.half() for t in truth.numbers]
    assert truth.fault(right) is None
    assert all(most < 0.1 for most in truth.allowed)
    for place, name in enumerate(gpu.NAMES):
        wrong = [t.clone() for t in right]
        wrong[place].view(-1)[-1] += 2 * truth.allowed[place] + 0.01
        assert truth.fault(wrong).startswith(f"wrong: {name} is off by")
        wrong[place].view(-1)[0] = math.nan
        assert truth.fault(wrong) == f"wrong: {name} is not finite"
    assert truth.fault(right[1:], first=1) is None


def by_sdpa(one, query, key, value):
    """Query by query in float64, each with the keys that it may see; of (H, L, d) tensors."""
    key, value = (t.repeat_interleave(one.group, 0) for t in (key, value))
    rows = []
    for i in range(query.shape[1]):
        first = 0 if one.window is None else max(0, i - one.window + 1)
        seen = slice(first, i + 1 if one.causal else None)
        rows.append(scaled_dot_product_attention(query[:, i : i + 1], key[:, seen], value[:, seen]))
    return torch.cat(rows, 1)


@KINDS
def test_truth_is_what_another_computes_query_by_query(on_cpu, changes):
    one = problem(**changes)
    tensors = one.tensors()

    def theirs(*inputs):
        if one.documents:
            parts = zip(*(t.split(one.documents) for t in inputs), strict=True)
            return torch.cat([by_sdpa(one, *(t.transpose(0, 1) for t in p)).transpose(0, 1)
                              for p in parts])  # fmt: skip
        return torch.stack([by_sdpa(one, *sample) for sample in zip(*inputs, strict=True)])

    exact = gpu.with_gradients(theirs, [t.double() for t in tensors])
    for found, right in zip(gpu.truth_of(one, tensors).numbers, exact, strict=True):
        assert float((found - right).abs().max()) < 1e-5


def test_an_answer_without_a_causal_mask_is_wrong(on_cpu):
    one, other = problem(), problem(causal=False)
    tensors = one.tensors()
    unmasked = gpu.truth_of(other, tensors).numbers
    assert gpu.truth_of(one, tensors).fault(unmasked).startswith("wrong: output is off by")


def test_poisoned_memory_is_not_finite():
    with gpu.poisoned():
        assert torch.empty_like(torch.ones(3, dtype=torch.bfloat16)).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()


def test_why_something_failed_in_a_line():
    assert gpu.attempt(lambda: 3) == (3, None)
    assert gpu.reason_of(torch.OutOfMemoryError("CUDA out of memory. Tried to")) == "out of memory"
    assert gpu.reason_of(ValueError("\n  first \nsecond")) == "ValueError: first"
    said = ["no mask please (Triggered internally at x.cpp)", "no mask please"]
    error = RuntimeError("No available kernel. Aborting execution.")
    assert gpu.reason_of(error, said).endswith("Aborting execution.; no mask please")
    assert gpu.reason_of(ValueError("other"), said) == "ValueError: other"


def test_what_fails_leaves_the_turns_and_the_others_go_on(monkeypatch):
    calls = []

    def fine():
        calls.append("fine")
        return float(len(calls))

    def fails():
        calls.append("fails")
        raise ValueError("refused")

    monkeypatch.setattr(gpu, "device_works", lambda: True)
    found = gpu.in_turns({"a": fine, "b": fails, "c": fine}, 2)
    assert found == {"a": [1.0, 4.0], "b": "ValueError: refused", "c": [3.0, 5.0]}
    monkeypatch.setattr(gpu, "device_works", lambda: False)
    assert gpu.in_turns({"a": fine, "b": fails}, 2) == {"b": "ValueError: refused"}


def test_a_row_has_the_median_and_the_spread():
    found = gpu.summary([2.0, 1.0, 4.0], 8e9)
    assert (found["milliseconds"], found["spread_milliseconds"], found["rounds"]) == (2.0, 3.0, 3)
    assert (found["tflops"], found["spread"]) == (4.0, 6.0)


# ------------------------------------------------------------------------- what is kept, and when


def test_a_second_start_goes_on_where_the_first_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(gpu, "device_works", lambda: True)
    first = gpu.Results("x", "what", ("method", "d"), MACHINE)
    first.add({"method": "a", "d": 1, "tflops": 2.0})
    first.refuse({"method": "b", "d": 1}, "out of memory")
    stored = json.loads((tmp_path / "x.json").read_text())
    assert stored["rows"] == [{"method": "a", "d": 1, "tflops": 2.0}]
    assert stored["refused"] == [{"method": "b", "d": 1, "reason": "out of memory"}]
    assert stored["made"]["device"] == "made up"
    second = gpu.Results("x", "what", ("method", "d"), MACHINE)
    assert second.has({"method": "a", "d": 1})
    assert second.has({"method": "b", "d": 1})
    assert not second.has({"method": "a", "d": 2})
    second.add({"method": "a", "d": 1, "tflops": 9.0})
    second.add({"method": "a", "d": 2, "tflops": 3.0})
    stored = json.loads((tmp_path / "x.json").read_text())
    assert [row["tflops"] for row in stored["rows"]] == [2.0, 3.0]


@pytest.mark.parametrize("key", gpu.SAME)
def test_rows_of_another_machine_are_neither_mixed_nor_lost(tmp_path, monkeypatch, key):
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    gpu.Results("x", "what", ("method",), MACHINE).add({"method": "a"})
    before = (tmp_path / "x.json").read_bytes()
    with pytest.raises(SystemExit, match=f"was measured with {key} made up; this is {key} other"):
        gpu.Results("x", "what", ("method",), {**MACHINE, key: "other"})
    assert (tmp_path / "x.json").read_bytes() == before


def test_a_broken_device_ends_the_run_after_its_reason_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(gpu, "device_works", lambda: False)
    results = gpu.Results("x", "what", ("method",), MACHINE)
    with pytest.raises(SystemExit, match="Start again"):
        results.refuse({"method": "a"}, "illegal memory access")
    assert gpu.Results("x", "what", ("method",), MACHINE).has({"method": "a"})


def test_nothing_begins_in_the_last_minute(monkeypatch):
    now = gpu.BEGAN + 100
    monkeypatch.setattr(gpu.time, "monotonic", lambda: now)
    assert not gpu.Clock(None).over()
    assert gpu.Clock(161).left() == pytest.approx(1)
    assert not gpu.Clock(161).over()
    assert gpu.Clock(160).over()
    assert gpu.Clock(1).left() == 0


# -------------------------------------------------------------------------------- the benchmark


def test_the_most_important_comes_first_and_nothing_twice():
    steps = list(attention_gpu.stages(attention_gpu.Scale()))
    rows = [
        tuple(attention_gpu.row_of(p, n, d)[k] for k in attention_gpu.KEYS)
        for p, names in steps
        for n in names
        for d in attention_gpu.METHODS[n].passes
    ]
    assert [r for r, n in Counter(rows).items() if n > 1] == []
    methods = ("flash", "sdpa flash", "sdpa cudnn")
    lengths = (2048, 4096, 8192, 16_384)
    first = {
        (m, d, "", size, causal, n)
        for m in methods for d in DIRECTIONS for size in (64, 128) for causal in (False, True)
        for n in lengths
    }  # fmt: skip
    assert set(rows[: len(first)]) == first
    order = [
        next(i for i, r in enumerate(rows) if r[0] == m or r[2] == m)
        for m in ("flex attention", "sdpa flash, deterministic", "gqa", "window", "packed")
    ]
    assert order == sorted(order)
    assert {r[0] for r in rows} == set(attention_gpu.METHODS)
    assert {r[5] for r in rows if r[0] == "flash"} == {512, 1024, *lengths}
    for p, _ in steps:
        assert p.tokens == 16_384 == (sum(p.documents) or p.batch * p.length)
        assert p.heads * p.size == 2048


def made_row(method, tflops, **changes):
    plain = {"pass": "forward", "d": 64, "causal": True, "features": "", "length": 2048,
             "flash_tflops": 300.0, "peak_bytes": 100, "spread": 4.0, "variant": "v"}  # fmt: skip
    return {"method": method, "tflops": tflops, **plain, **changes}


def test_the_aims_are_geometric_means_of_what_was_measured_in_the_same_turns():
    rows = [
        made_row("flash", 300.0, peak_bytes=120), made_row("sdpa flash", 150.0),
        made_row("sdpa flash", 600.0, length=4096), made_row("sdpa flash", 600.0, causal=False),
        made_row("sdpa flash", 1.0, length=512), made_row("sdpa flash", 1.0, features="gqa"),
        made_row("sdpa flash", 1.0, d=128), made_row("sdpa cudnn", 600.0),
    ]  # fmt: skip
    lines = attention_gpu.aim_lines(rows, (2048, 4096))
    assert lines[0] == (
        "forward, d 64, over sdpa flash: aim 1.20, measured 0.79 (full 0.50, causal 1.00; "
        "3 of 4 problems)"
    )
    assert "aim 0.85, measured 0.50" in lines[2]
    assert "measured nothing" in lines[4]
    assert lines[-1] == "memory over sdpa flash: aim at most 1.10, measured 1.20"
    assert "300 ±2 0M" in attention_gpu.table(rows)


# ----------------------------------------------------------------------------------- the tuning


def test_the_plan_is_within_its_limits_and_has_the_rule():
    most = {"forward": 12, "key_value": 10, "query": 10}
    plan = flash_tuning.plan()
    assert len(set(plan)) == len(plan)
    groups = Counter((e.kernel, e.size, e.causal) for e in plan)
    assert len(groups) == 12
    for (kernel, size, causal), count in groups.items():
        assert 8 <= count <= most[kernel]
        same = [e for e in plan if (e.kernel, e.size, e.causal) == (kernel, size, causal)]
        assert len({e.word for e in same}) == count
        rule = flash_configs.rule(kernel, "sm90", torch.bfloat16, size)
        assert rule in [e.config for e in same]


def test_every_length_of_the_sweep_has_its_own_row_in_the_table():
    lengths = flash_tuning.Scale().lengths
    buckets = {sum(n > most for most in flash_configs.BUCKETS) for n in lengths}
    assert len(buckets) == len(lengths) == len(flash_configs.BUCKETS) + 1


def tuned(word, milliseconds, spread, *, rule=False, variant="v"):
    return {"variant": variant, "method": word, "milliseconds": milliseconds, "rule": rule,
            "spread_milliseconds": spread, "config": {"rows": word}}  # fmt: skip


def test_only_what_beats_the_rule_by_more_than_the_spread_is_adopted():
    rule = tuned("rule", 10.0, 0.3, rule=True)
    assert flash_tuning.adopted([rule, tuned("a", 9.5, 0.4)]) == {"v": {"rows": "a"}}
    assert flash_tuning.adopted([rule, tuned("a", 9.5, 0.6)]) == {}
    assert flash_tuning.adopted([rule, tuned("a", 9.8, 0.1)]) == {}
    assert flash_tuning.adopted([rule, tuned("a", 10.5, 0.0)]) == {}
    assert flash_tuning.adopted([tuned("a", 9.0, 0.0)]) == {}
    two = [rule, tuned("a", 9.0, 0.1), tuned("b", 8.0, 0.1)]
    assert flash_tuning.adopted(two) == {"v": {"rows": "b"}}
    assert flash_tuning.adopted([*two, tuned("c", 1.0, 0.1, variant="w")]) == {"v": {"rows": "b"}}


def test_what_is_adopted_is_what_the_kernels_read(tmp_path, monkeypatch):
    config = flash_configs.as_json(Config(64, 64, 4, 3, tma=True))
    rows = [tuned("rule", 10.0, 0.3, rule=True), tuned("a", 9.0, 0.1) | {"config": config}]
    with pytest.raises(SystemExit, match="measure first"):
        flash_tuning.adopt(tmp_path, tmp_path / "flash_configs.json")
    stored = {"made": {"device": "d", "date": "2026-01-01"}, "rows": rows}
    (tmp_path / "flash_tuning.json").write_text(json.dumps(stored))
    flash_tuning.adopt(tmp_path, tmp_path / "flash_configs.json")
    monkeypatch.setattr(flash_configs, "TABLE", tmp_path / "flash_configs.json")
    assert flash_configs.measured.__wrapped__() == {"v": Config(64, 64, 4, 3, tma=True)}
    assert json.loads((tmp_path / "flash_configs.json").read_text())["made"] == stored["made"]


# --------------------------------------------------------------------------- both, at toy size

BARE = """
import importlib.machinery, importlib.metadata, re, sys

ALLOWED = {"torch", "torchgen", "functorch", "triton", "numpy", "mpmath", "markupsafe"}
for package in ("torch", "triton", "numpy"):
    for needed in importlib.metadata.requires(package) or []:
        if "extra ==" not in needed:
            ALLOWED.add(re.match("[A-Za-z0-9_.-]+", needed)[0].replace("-", "_").lower())

class Only(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        spec = super().find_spec(name, path, target)
        outside = spec and "site-packages" in str(spec.origin or spec.submodule_search_locations)
        return None if outside and name.split(".")[0] not in ALLOWED else spec

sys.meta_path[:] = [Only if finder is importlib.machinery.PathFinder else finder
                    for finder in sys.meta_path]
"""


@pytest.fixture
def bare_python(tmp_path):
    """Run Python, and the processes that it starts, with torch, Triton, NumPy and what they need."""
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "sitecustomize.py").write_text(BARE)

    def run(*command):
        settings = {**os.environ, "PYTHONPATH": str(tmp_path / "bare")}
        command = [sys.executable, *map(str, command)]
        return subprocess.run(command, env=settings, capture_output=True, text=True)

    assert "No module named 'jaxtyping'" in run("-c", "import jaxtyping").stderr
    return run


def smoke(bare_python, script, folder, *flags):
    done = bare_python(BENCHMARKS / script, "--smoke", "--results", folder, *flags)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton exists for Linux only"
)


@pytest.mark.slow
@needs_triton
def test_the_benchmark_at_toy_size_where_only_torch_triton_and_numpy_are(tmp_path, bare_python):
    said = smoke(bare_python, "attention_gpu.py", tmp_path)
    stored = json.loads((tmp_path / "attention_gpu.json").read_text())
    found = {(r["method"], r["pass"], r["features"]) for r in stored["rows"]}
    assert {("flash", d, f) for d in DIRECTIONS for f in ("", "gqa", "window", "packed")} <= found
    assert {("plain", DIRECTIONS[1], ""), ("flash_small", DIRECTIONS[0], "")} <= found
    reasons = {r["method"]: r["reason"] for r in stored["refused"]}
    assert set(reasons) == {"sdpa cudnn", "sdpa efficient", "flex attention", "varlen_attn"}
    assert [r for r in reasons.values() if r.startswith("wrong")] == []
    keys = {"method", "pass", "d", "causal", "length", "batch", "features", "tflops", "spread",
            "milliseconds", "peak_bytes", "rounds", "flash_tflops"}  # fmt: skip
    assert all(keys <= set(r) and r["tflops"] > 0 for r in stored["rows"])
    assert set(stored["ceilings"]) == {"copy_gb_per_s", "matmul_tflops"}
    assert "aim 1.20" in said
    before = stored["rows"]
    said = smoke(bare_python, "attention_gpu.py", tmp_path, "--deadline", "1")
    assert "the deadline:" in said
    assert json.loads((tmp_path / "attention_gpu.json").read_text())["rows"] == before


@pytest.mark.slow
@needs_triton
def test_the_tuning_at_toy_size_where_only_torch_triton_and_numpy_are(tmp_path, bare_python):
    smoke(bare_python, "flash_tuning.py", tmp_path, "--adopt")
    stored = json.loads((tmp_path / "flash_tuning.json").read_text())
    assert stored["refused"] == []
    assert {(r["kernel"], r["rule"]) for r in stored["rows"]} == {
        (kernel, rule) for kernel in ("forward", "key_value", "query") for rule in (False, True)
    }
    table = json.loads((tmp_path / "flash_configs.json").read_text())
    assert table["made"] == stored["made"]
    assert set(table["configs"]) <= {r["variant"] for r in stored["rows"]}
