"""Which tiles, warps and stages suit the flash kernels on this GPU?

For each head size, causal or full, and length, the configurations of a kernel are called in turns,
three rounds, after each was found right with its memory poisoned. Backward kernels are timed inside
flash_backward, with only that kernel's configuration changed. First everything is compiled in many
processes: a run on tiny tensors leaves the kernel in Triton's cache on disk.

--adopt measures nothing: it writes backends/flash_configs.json from the rows. A configuration enters
only if it beats the rule's by more than the spread.

Usage: python benchmarks/flash_tuning.py [--deadline SECONDS] [--smoke] [--results FOLDER] [--adopt]
"""

import json
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gpu
from gpu import Problem, Results
from tested_transformer.functional.backends import flash, flash_configs
from tested_transformer.functional.backends.flash_configs import Config

WHAT = (
    "flash kernels by tiles, warps and stages, bf16, 16k tokens of width 2048: forward, or the whole "
    "backward pass with one kernel's configuration changed; milliseconds, configurations in turns"
)
KEYS = ("variant", "method")
BROKEN: list[Any] = []  # in a process that compiles: the entry after which its device failed
ROUNDS = 3

# (rows, cols, warps, stages): on compute capability 9.0 none spills, all fit, as `gpu_compile --plan`
# checks. First those with the most warps in flight on a multiprocessor, under a causal mask.
TMA = {
    ("forward", 64): [
        (128, 64, 8, 3), (128, 64, 8, 4), (64, 128, 4, 2), (64, 64, 4, 3), (128, 128, 4, 2),
        (128, 64, 4, 3), (64, 128, 4, 3), (256, 128, 8, 2), (128, 128, 8, 2), (128, 128, 8, 3),
        (256, 64, 8, 3),
    ],
    ("forward", 128): [
        (64, 64, 8, 3), (128, 32, 8, 4), (64, 64, 4, 3), (64, 64, 4, 2), (128, 32, 4, 3),
        (128, 128, 8, 2), (128, 128, 8, 3), (128, 64, 8, 2), (128, 64, 8, 3), (64, 128, 4, 3),
    ],
    ("key_value", 64): [
        (32, 64, 4, 2), (32, 64, 4, 3), (64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 8, 2),
        (64, 128, 8, 3), (32, 128, 8, 2), (32, 128, 8, 3), (64, 64, 8, 2),
    ],
    ("key_value", 128): [
        (32, 64, 4, 2), (32, 64, 4, 3), (16, 64, 4, 2), (32, 128, 8, 2), (32, 128, 8, 3),
        (64, 64, 8, 2), (64, 64, 8, 3), (32, 64, 8, 2),
    ],
    ("query", 64): [
        (128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 8, 4), (128, 32, 8, 3), (64, 64, 4, 2),
        (64, 64, 4, 3), (64, 128, 4, 2), (128, 64, 4, 2), (128, 128, 8, 2), (128, 128, 8, 3),
    ],
    ("query", 128): [
        (64, 64, 4, 2), (64, 32, 4, 3), (128, 128, 8, 2), (128, 64, 8, 2), (128, 64, 8, 3),
        (64, 64, 8, 2), (128, 32, 8, 3), (128, 32, 8, 2), (64, 128, 4, 2), (64, 64, 4, 3),
    ],
}  # fmt: skip
FULL_ONLY = {("key_value", 128): [(64, 128, 8, 2)]}  # with a causal mask it spills
POINTERS = {  # loads by pointers, not by descriptors
    ("forward", 64): [(128, 64, 8, 3)],
    ("forward", 128): [(128, 64, 8, 3), (128, 128, 8, 2)],
    ("key_value", 64): [(32, 128, 8, 2)],
    ("key_value", 128): [(32, 128, 8, 2)],
}


@dataclass(frozen=True)
class Entry:
    """A configuration to try for a kernel."""

    kernel: str
    size: int
    causal: bool
    config: Config

    @property
    def word(self) -> str:
        """The configuration in one word."""
        c = self.config
        return f"{c.rows}x{c.cols} w{c.warps} s{c.stages}" + (" tma" if c.tma else "")


def plan() -> list[Entry]:
    """All that is tried: at most 12 forward, 10 key_value and 10 query for a head size and order."""
    found = []
    for kernel, size in TMA:
        tiles = [Config(*tile, tma=True) for tile in TMA[kernel, size]]
        tiles += [Config(*tile) for tile in POINTERS.get((kernel, size), [])]
        full = [Config(*tile, tma=True) for tile in FULL_ONLY.get((kernel, size), [])]
        for causal, configs in ((False, [*tiles, *full]), (True, tiles)):
            found += [Entry(kernel, size, causal, config) for config in configs]
    return found


def toy_plan() -> list[Entry]:
    """For the interpreter; the second is the rule's there."""
    tiles = (Config(32, 32, 4, 1), flash_configs.rule("forward", arch(), gpu.DTYPE, 16))
    kernels = ("forward", "key_value", "query")
    return [Entry(kernel, 16, True, tile) for kernel in kernels for tile in tiles]


@dataclass(frozen=True)
class Scale:
    """How large the problems are; the lengths are one for each bucket of the table."""

    lengths: tuple[int, ...] = (4096, 16_384, 1024)
    tokens: int = 16_384
    width: int = 2048


TOY = Scale((32,), 32, 16)


def arch() -> str:
    """The compute capability, as the table names it."""
    if gpu.DEVICE == "cpu":
        return "interpreted"
    return "sm{}{}".format(*torch.cuda.get_device_capability())


def variant_of(kernel: str, problem: Problem) -> str:
    """The row of flash_configs.json that a measurement is about."""
    return flash_configs.key_of(
        kernel, arch(), gpu.DTYPE, problem.size, problem.length, problem.causal, []
    )


# --- One call, with one kernel's configuration ------------------------------------------------------


@contextmanager
def configured(kernel: str, config: Config) -> Iterator[None]:
    """One kernel takes this configuration, the others the rule's."""
    chosen = flash.choose

    def choose(asked: str, query: Tensor, *_: Any) -> Config:
        known = asked == kernel
        return config if known else flash_configs.rule(asked, arch(), query.dtype, query.shape[-1])

    flash.choose = choose
    try:
        yield
    finally:
        flash.choose = chosen


def operate(
    entry: Entry, problem: Problem, tensors: list[Tensor], kept: tuple[Tensor, Tensor] | None = None
) -> list[Tensor]:
    """The forward pass (output and log-sum-exp), or the backward pass (three gradients)."""
    query, key, value, gradient = tensors
    shape = (problem.length, problem.length)
    rest = (*[None] * 6, problem.causal, None, problem.size**-0.5, 0.0, *shape)
    with configured(entry.kernel, entry.config):
        if entry.kernel == "forward":
            return list(flash.flash_forward(query, key, value, *rest))
        kept = kept or flash.flash_forward(query, key, value, *rest)
        return list(flash.flash_backward(gradient, query, key, value, *kept, *rest))


def compile_one(entry: Entry, scale: Scale) -> str | None:
    """Leave the kernel in Triton's cache; why it cannot be, or None. For a process of its own."""
    length = 256 if gpu.DEVICE == "cuda" else scale.tokens  # as divisible as the real problems
    problem = Problem(entry.size, entry.causal, length, length, scale.width)
    if BROKEN:
        return None  # the one that broke this process's device has been told

    def call() -> None:
        operate(entry, problem, problem.tensors())
        if gpu.DEVICE == "cuda":
            torch.cuda.synchronize()

    reason = gpu.attempt(call)[1]
    if reason and not gpu.device_works():
        BROKEN.append(entry)
    return reason


def compile_all(entries: list[Entry], scale: Scale, clock: gpu.Clock) -> dict[Entry, str]:
    """Compile in up to 14 processes, and say which cannot be."""
    jobs = min(14, max(1, (os.cpu_count() or 1) - 2), len(entries))
    context, refused = multiprocessing.get_context("spawn"), {}
    pool = ProcessPoolExecutor(jobs, mp_context=context)
    waiting = {pool.submit(compile_one, entry, scale): entry for entry in entries}
    late = False
    try:
        for future in as_completed(waiting, timeout=clock.left()):
            if future.exception():  # a process died: nobody knows on whose account
                print("not compiled beforehand:", waiting[future], future.exception(), flush=True)
            elif future.result():
                refused[waiting[future]] = future.result()
    except TimeoutError:
        late = True
        print("the deadline: not everything was compiled", flush=True)
    pool.shutdown(wait=not late, cancel_futures=True)
    return refused


# --- The sweep ------------------------------------------------------------------------------------


def groups(entries: list[Entry], scale: Scale) -> Iterator[tuple[Problem, list[Entry]]]:
    """A problem and the configurations of one kernel, to be called in turns."""
    calls = dict.fromkeys((e.size, e.causal, e.kernel) for e in entries)
    problems = sorted({call[:2] for call in calls}, reverse=True)
    for length in scale.lengths:
        for size, causal in problems:
            problem = Problem(size, causal, length, scale.tokens, scale.width)
            for kernel in dict.fromkeys(e.kernel for e in entries):
                same = (kernel, size, causal)
                yield problem, [e for e in entries if (e.kernel, e.size, e.causal) == same]


def sweep(
    entries: list[Entry], scale: Scale, results: Results, refused: dict[Entry, str],
    clock: gpu.Clock,
) -> None:  # fmt: skip
    """Measure every group that is not stored yet, until the deadline is near."""
    last, ready = None, None
    todo = list(groups(entries, scale))
    for done, (problem, group) in enumerate(todo):
        if clock.over():
            print(f"the deadline: {len(todo) - done} of {len(todo)} groups were not begun")
            return
        rows = {entry: row_of(entry, problem) for entry in group}
        if all(map(results.has, rows.values())):
            continue
        if problem != last:
            tensors = problem.tensors()
            last, ready = problem, (tensors, gpu.truth_of(problem, tensors))
        measure(problem, rows, *ready, results, refused)


def row_of(entry: Entry, problem: Problem) -> dict[str, Any]:
    """What a row holds before anything is measured."""
    c = entry.config
    rule = flash_configs.rule(entry.kernel, arch(), gpu.DTYPE, entry.size)
    return {
        "variant": variant_of(entry.kernel, problem), "method": entry.word,
        "kernel": entry.kernel, **problem.row, "config": flash_configs.as_json(c),
        "rule": c == rule,
    }  # fmt: skip


def measure(
    problem: Problem, rows: dict[Entry, dict], tensors: list[Tensor], truth: gpu.Truth,
    results: Results, refused: dict[Entry, str],
) -> None:  # fmt: skip
    """Check each configuration with poisoned memory; time those that are right, in turns."""
    kept = kept_by_rule(problem, tensors)
    calls = {}
    for entry, row in rows.items():
        call = partial(operate, entry, problem, tensors, kept)
        reason = refused.get(entry) or fault(entry, call, truth)
        if reason:
            results.refuse(row, reason)
        else:
            calls[entry.word] = partial(gpu.milliseconds, call, rep=50)
    words = {entry.word: entry for entry in rows}
    forward = next(iter(rows)).kernel == "forward"
    operations = gpu.flops(problem, "forward") * (1 if forward else 2.5)
    for word, times in gpu.in_turns(calls, ROUNDS).items():
        row = rows[words[word]]
        if isinstance(times, str):
            results.refuse(row, times)
        else:
            results.add(row | gpu.summary(times, operations))


def kept_by_rule(problem: Problem, tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp that the backward kernels read."""
    config = flash_configs.rule("forward", arch(), gpu.DTYPE, problem.size)
    return tuple(operate(Entry("forward", problem.size, problem.causal, config), problem, tensors))


def fault(entry: Entry, call: partial, truth: gpu.Truth) -> str | None:
    """What is wrong with a configuration, if anything."""

    def checked() -> str | None:
        found = call()
        return truth.fault(found[:1]) if entry.kernel == "forward" else truth.fault(found, first=1)

    with gpu.poisoned():
        wrong, reason = gpu.attempt(checked)
    return wrong or reason


# --- The table that the kernels read ----------------------------------------------------------------


def adopted(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each problem the fastest configuration, if it beats the rule's by more than the spread."""
    found = {}
    for variant in dict.fromkeys(row["variant"] for row in rows):
        tried = [row for row in rows if row["variant"] == variant]
        best = min(tried, key=lambda row: row["milliseconds"])
        rule = next((row for row in tried if row["rule"]), None)
        if rule is None:  # nothing to compare with
            continue
        gain = rule["milliseconds"] - best["milliseconds"]
        if gain > max(rule["spread_milliseconds"], best["spread_milliseconds"]):
            found[variant] = best["config"]
    return found


def adopt(folder: Path, table: Path) -> None:
    """Write the table from the stored rows; the rule serves what is not in it."""
    source = folder / "flash_tuning.json"
    if not source.exists():
        raise SystemExit(f"{source} is not there: measure first")
    stored = json.loads(source.read_text(encoding="utf-8"))
    configs = adopted(stored["rows"])
    what = "flash kernels' configurations that beat the rule's by more than the spread"
    text = json.dumps({"what": what, "made": stored["made"], "configs": configs}, indent=1)
    table.write_text(text + "\n", encoding="utf-8")
    problems = len({row["variant"] for row in stored["rows"]})
    print(f"{table.name}: {len(configs)} of {problems} problems leave the rule")
    print(*(f"{key}: {config}" for key, config in configs.items()), sep="\n")


def fastest(rows: list[dict[str, Any]]) -> str:
    """For each problem the fastest configuration beside the rule's."""
    lines = [f"{'problem':58} {'fastest':20} {'ms':>8} {'rule ms':>8} {'spread':>7}"]
    for variant in dict.fromkeys(row["variant"] for row in rows):
        tried = [row for row in rows if row["variant"] == variant]
        best = min(tried, key=lambda row: row["milliseconds"])
        rule = next((f"{r['milliseconds']:.4g}" for r in tried if r["rule"]), "-")
        spread = f"{best['spread_milliseconds']:7.2g}"
        lines.append(
            f"{variant:58} {best['method']:20} {best['milliseconds']:8.4g} {rule:>8} {spread}"
        )
    return "\n".join(lines)


def main() -> None:
    """Compile, measure until all is done or the deadline is near, print the fastest; or adopt."""
    given = gpu.options(__doc__.splitlines()[0], "--adopt")
    with gpu.results_in(given) as folder:
        if not given.adopt or given.smoke:
            gpu.check_gpu(given.smoke)
            tune(given.smoke, gpu.Clock(given.deadline))
        if given.adopt:
            table = folder / "flash_configs.json" if given.smoke else flash_configs.TABLE
            adopt(folder, table)


def tune(smoke: bool, clock: gpu.Clock) -> None:
    """Compile what is not stored yet, measure it, print the fastest."""
    scale, entries = (TOY, toy_plan()) if smoke else (Scale(), plan())
    results = Results("flash_tuning", WHAT, KEYS, gpu.made())
    if not results.ceilings and not clock.over():
        results.ceilings = gpu.ceilings()
    missing = [
        entry
        for problem, group in groups(entries, scale)
        for entry in group
        if not results.has(row_of(entry, problem))
    ]
    if missing:
        refused = compile_all(list(dict.fromkeys(missing)), scale, clock)
        sweep(entries, scale, results, refused, clock)
    print(results.machine, results.ceilings, fastest(results.rows), sep="\n")


if __name__ == "__main__":
    main()
