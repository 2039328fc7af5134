"""Is sparse attention fast? Time and memory of each fast form as the text grows, beside its own count.

One head dimension of 32, two heads, one sequence, float32, forward, one thread. Each row is a length and a
method: the median processor time of a call, over that of PyTorch's own causal attention in the same
process, called in turns; and by how many MiB the call raises the resident memory of a fresh process.
The exponent of a method is the slope of its time over the length, both in logarithms; beside it stands that
of the scores that it counts.

Usage: OMP_NUM_THREADS=1 python benchmarks/sparse_attention.py [--minutes 6] [--methods local ...]
Rows that are stored are not measured again.
"""

import argparse
import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from record import read_rows, write_rows
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from tqdm import tqdm

from tested_transformer.analysis.sparse_cost import dense_cost, pattern_cost
from tested_transformer.mixers.fixed_patterns import (
    Atrous,
    Local,
    fixed_pattern,
    strided_pattern,
)
from tested_transformer.mixers.longnet import LongNet, longnet_attention
from tested_transformer.mixers.patterns import Pattern, sparse_attention

NAME = "sparse_attention"
WHAT = (
    "forward time and memory of sparse attention over the length, float32, one thread, "
    "one sequence of two heads of 32 features; ratio: processor time over that of PyTorch's causal attention"
)
LENGTHS = [2**n for n in range(10, 16)]
HEADS, WIDTH = 2, 32
MOST_SCORES = 2**26  # of one head, 256 MiB: what needs more is left out
BRANCHES = tuple(64 * 4**n for n in range(5)), tuple(4**n for n in range(5))
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def root(length: int) -> int:
    """About the square root: 32 for 1,024 and 2,048 tokens, 64 for 4,096."""
    return 1 << (length.bit_length() // 2)


PATTERNS: dict[str, Callable[[int], Pattern]] = {  # by the length
    "local": lambda length: Local(128, causal=True),
    "atrous": lambda length: Atrous(32, causal=True),
    "strided": lambda length: strided_pattern(root(length)),
    "fixed": lambda length: fixed_pattern(root(length)),
    "longnet": lambda length: LongNet(*BRANCHES),
}


def dense(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """PyTorch's own, which keeps no scores and skips what is masked."""
    return scaled_dot_product_attention(query, key, value, is_causal=True)


def by_pattern(name: str) -> Attend:
    """Sparse attention under one of the patterns."""
    return lambda q, k, v: sparse_attention(q, k, v, PATTERNS[name](q.shape[2]))


def flex(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """FlexAttention as it comes, not compiled: all scores, then the mask of the local window."""
    rule, length = PATTERNS["local"](0).rule, query.shape[2]
    mask = create_block_mask(lambda b, h, i, j: rule(i, j), None, None, length, length, "cpu")
    return flex_attention(query, key, value, block_mask=mask)


MIXERS: dict[str, Attend] = {
    "local": by_pattern("local"),
    "atrous": by_pattern("atrous"),
    "strided": by_pattern("strided"),
    "fixed": by_pattern("fixed"),
    "longnet": lambda q, k, v: longnet_attention(q, k, v, *BRANCHES),
    "flex, local": flex,
}


def counted(method: str, length: int) -> int | None:
    """The scores that a method computes for one head; None for what counts by another rule."""
    if method == "flex, local":
        return dense_cost(length, WIDTH).scores
    return (
        pattern_cost(PATTERNS[method](length), length, WIDTH).scores if method in PATTERNS else None
    )


def inputs_of(length: int) -> list[Tensor]:
    """Query, key and value."""
    made = torch.Generator().manual_seed(length)
    return [torch.randn(1, HEADS, length, WIDTH, generator=made) for _ in range(3)]


def seconds(attend: Attend, inputs: list[Tensor]) -> float:
    """Processor time of one call."""
    start = time.process_time()
    attend(*inputs)
    return time.process_time() - start


def resident(which: str) -> float:
    """MiB of this process's memory, now (VmRSS) or at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(which))) / 2**10


def extra_memory(method: str, length: int) -> float:
    """By how many MiB one call raises the resident memory of this process, which must be a fresh one."""
    attend, inputs = (dense if method == "dense" else MIXERS[method]), inputs_of(length)
    attend(*inputs_of(256))  # loads what is loaded once
    gc.collect()
    before = resident("VmRSS")
    attend(*inputs)
    return resident("VmHWM") - before


def memory_apart(method: str, length: int) -> float:
    """What a fresh process measures."""
    command = [sys.executable, __file__, "--memory-of", method, str(length)]
    return round(float(subprocess.check_output(command, text=True)), 1)


def measure(method: str, length: int, rounds: int) -> dict:
    """One row."""
    inputs, times = inputs_of(length), {"dense": [], method: []}
    for n in range(rounds + 1):  # the first call pays for what later ones find ready
        for name, measured in times.items():
            taken = seconds(dense if name == "dense" else MIXERS[name], inputs)
            measured += [taken] if n else []
    ours, full = (statistics.median(times[name]) for name in (method, "dense"))
    row = {
        "method": method,
        "length": length,
        "seconds": round(ours, 5),
        "ratio": round(ours / full, 4),
    }
    row |= {"scores": counted(method, length), "rounds": rounds}
    row |= {"mib": memory_apart(method, length), "mib_dense": memory_apart("dense", length)}
    return row | {"load": round(os.getloadavg()[0], 1)}


def exponent(rows: list[dict], of: str) -> float:
    """The slope of log(of) over log(length), by least squares, from 4,096 tokens on."""
    longest = [row for row in rows if row["length"] >= 4096 and row[of]]
    x, y = (torch.tensor([float(row[name]) for row in longest]).log() for name in ("length", of))
    return round(
        (((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum()).item(), 2
    )


def exponents(rows: list[dict]) -> dict[str, dict[str, float]]:
    """Of each method with three lengths or more: of its time, its count and its memory."""
    table = {}
    for method in MIXERS:
        own = [row for row in rows if row["method"] == method and row["length"] >= 4096]
        if len(own) >= 3:
            kinds = {"time": "seconds", "scores": "scores", "memory": "mib"}
            table[method] = {
                kind: exponent(own, name)
                for kind, name in kinds.items()
                if all(r[name] for r in own)
            }
    return table


def main() -> None:
    """Measure what is missing, shortest first, until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--methods", nargs="+", default=list(MIXERS), choices=list(MIXERS))
    parser.add_argument("--memory-of", nargs=2, metavar=("METHOD", "LENGTH"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    if given.memory_of:
        print(extra_memory(given.memory_of[0], int(given.memory_of[1])))
        return
    end = time.monotonic() + 60 * given.minutes
    for length in tqdm(LENGTHS):
        for method in given.methods:
            known = {(row["method"], row["length"]) for row in read_rows(NAME)}
            too_large = (counted(method, length) or 0) > MOST_SCORES
            if (method, length) in known or too_large or time.monotonic() > end:
                continue
            row = measure(method, length, rounds=5 if length < 16384 else 3)
            rows = [*read_rows(NAME), row]
            write_rows(NAME, WHAT, rows, exponents=exponents(rows))
            tqdm.write(
                f"{method:12} {length:6}  {row['ratio']:8.3f} x dense  {row['mib']:8.1f} MiB"
            )
    for method, found in exponents(read_rows(NAME)).items():
        print(f"{method:12}", *(f"{kind} {value:.2f}" for kind, value in found.items()), sep="  ")


if __name__ == "__main__":
    main()
