"""How do the backends compare on a processor? It decides what "auto" takes.

Two backends answer the same calls in turns, on one thread; the number is the ratio of the medians of
their processor times: plain over fused, so above 1 the fused one is faster, and on long sequences
tiled over fused. There the memory is measured too, each call in a fresh process: the highest resident
memory (VmHWM) less what was resident before the call, inputs included.

Usage: OMP_NUM_THREADS=1 python benchmarks/attention_cpu.py [--rounds 15]
"""

import argparse
import datetime
import gc
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from tested_transformer import attention

RESULTS = Path(__file__).parent / "results" / "attention_cpu.json"
SHAPES = {  # batch, heads, length, head size
    "short, many": (32, 8, 64, 64),
    "a chapter's batch": (8, 8, 256, 64),
    "long": (1, 8, 2048, 64),
}
LONG = {f"{length:,} tokens": (1, 8, length, 64) for length in (4096, 8192)}
OPTIONS = {"full": {}, "causal": {"causal": True}, "window 128": {"causal": True, "window": 128}}


def seconds(backend: str, inputs: list[torch.Tensor], options: dict) -> float:
    """Processor time of one call, forward only."""
    start = time.process_time()
    attention(*inputs, **options, backend=backend)
    return time.process_time() - start


def inputs_of(shape: tuple[int, ...]) -> list[torch.Tensor]:
    """Query, key and value."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for _ in range(3)]


def ratio(slow: str, fast: str, shape: tuple[int, ...], options: dict, rounds: int) -> float:
    """Median time of one backend over that of the other, called in turns."""
    inputs, times = inputs_of(shape), {slow: [], fast: []}
    for backend in times:
        seconds(backend, inputs, options)  # the first call pays for what later ones find ready
    for _ in range(rounds):
        for backend, measured in times.items():
            measured.append(seconds(backend, inputs, options))
    return statistics.median(times[slow]) / statistics.median(times[fast])


def extra_memory(backend: str, shape: tuple[int, ...], options: dict) -> float:
    """By how many MiB one call raises the resident memory of this process, which must be a fresh one."""
    inputs = inputs_of(shape)
    attention(
        *(t[:, :, :16] for t in inputs), **options, backend=backend
    )  # loads what is loaded once
    gc.collect()
    before = resident("VmRSS")
    attention(*inputs, **options, backend=backend)
    return resident("VmHWM") - before


def resident(which: str) -> float:
    """MiB of this process's memory, now (VmRSS) or at most (VmHWM).

    getrusage's ru_maxrss is no use here: a process begins with the peak of the one that started it.
    """
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith(which))
    return int(kilobytes) / 2**10


def extra_memory_apart(backend: str, name: str, option: str, runs: int = 5) -> float:
    """The median of what fresh processes measure."""
    command = [sys.executable, __file__, "--memory-of", backend, name, option]
    answers = [subprocess.check_output(command, text=True) for _ in range(runs)]
    return round(statistics.median(map(float, answers)), 1)


def table_of(slow: str, fast: str, shapes: dict, rounds: int) -> dict:
    """The ratio for every shape with every option, printed row by row."""
    table = {}
    print(f"{f'{slow} / {fast}':20}", *(f"{name:>12}" for name in OPTIONS))
    for name, shape in shapes.items():
        table[name] = {o: round(ratio(slow, fast, shape, g, rounds), 2) for o, g in OPTIONS.items()}
        print(f"{name:20}", *(f"{value:12.2f}" for value in table[name].values()), flush=True)
    return table


def main() -> None:
    """Measure every shape with every option, print the tables and store them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--memory-of", nargs=3, metavar=("BACKEND", "SHAPE", "OPTION"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    if given.memory_of:
        backend, name, option = given.memory_of
        print(extra_memory(backend, LONG[name], OPTIONS[option]))
        return
    store(given.rounds)


def store(rounds: int) -> None:
    """Measure and write."""
    table = table_of("plain", "fused", SHAPES, rounds)
    tiled = table_of("tiled", "fused", LONG, rounds)
    memory = {
        name: {
            option: {b: extra_memory_apart(b, name, option) for b in ("tiled", "fused")}
            for option in OPTIONS
        }
        for name in LONG
    }
    print("MiB above the inputs", *(f"{name}: {row}" for name, row in memory.items()), sep="\n")
    record = {
        "what": "processor time, plain backend over fused backend, forward, float32, one thread",
        "shapes": SHAPES,
        "ratios": table,
        "tiled": {
            "what": "tiled over fused: processor time, and MiB of peak resident memory above inputs",
            "shapes": LONG,
            "ratios": tiled,
            "memory": memory,
        },
        "rounds": rounds,
        "processor": platform.machine(),
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
    }
    RESULTS.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
