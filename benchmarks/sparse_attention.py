"""Is sparse attention fast? Time and memory of each fast form as the text grows, beside its own count.

One head dimension of 32, two heads, one sequence, float32, forward, one thread. Each row is a length and a
method: the median processor time of a call, over that of PyTorch's own causal attention in the same
process, called in turns (without the causal mask beside a method that has none); and by how many MiB the
call raises the resident memory of a fresh process. What hashes, clusters or selects does so inside the call.
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
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from record import read_rows, write_rows
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from tqdm import tqdm

from tested_transformer.analysis.sparse_cost import dense_cost, pattern_cost
from tested_transformer.mixers.clustered import cluster_queries, clustered_attention
from tested_transformer.mixers.fixed_patterns import (
    Atrous,
    Local,
    fixed_pattern,
    strided_pattern,
)
from tested_transformer.mixers.global_patterns import BigBird, LocalGlobal
from tested_transformer.mixers.indexed_attention import indexed_attention
from tested_transformer.mixers.linformer import linformer_attention
from tested_transformer.mixers.longnet import LongNet, longnet_attention
from tested_transformer.mixers.lsh import lsh_attention, lsh_buckets
from tested_transformer.mixers.nystrom import nystrom_attention
from tested_transformer.mixers.patterns import Pattern, sparse_attention
from tested_transformer.mixers.performer import orthogonal_directions, performer_attention

NAME = "sparse_attention"
WHAT = (
    "forward time and memory of sparse attention over the length, float32, one thread, "
    "one sequence of two heads of 32 features; ratio: processor time over that of PyTorch's attention, causal "
    "where the method is"
)
LENGTHS = [2**n for n in range(10, 16)]
HEADS, WIDTH = 2, 32
MOST_SCORES = 2**26  # of one head, 256 MiB: what holds more is left out; an indexer holds a chunk's
BRANCHES = tuple(64 * 4**n for n in range(5)), tuple(4**n for n in range(5))
CHUNK, ROUNDS = 64, 4  # of hashing: tokens per chunk, rounds
KEPT = 64  # projected keys, landmarks, clusters
FEATURES = 128  # random ones
SELECTED, INDEXER_HEADS, INDEXER_WIDTH = 128, 1, 8
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Method(NamedTuple):
    """How it is called, and the scores that it computes for one head, by the length."""

    attend: Attend
    scores: Callable[[int], int]
    causal: bool = True


def root(length: int) -> int:
    """A power of two near the square root: 32 for 1,024 tokens, 64 for 2,048 and 4,096, 256 for 32,768."""
    return 1 << (length.bit_length() // 2)


PATTERNS: dict[str, Callable[[int], Pattern]] = {  # by the length
    "local": lambda length: Local(128, causal=True),
    "atrous": lambda length: Atrous(32, causal=True),
    "strided": lambda length: strided_pattern(root(length)),
    "fixed": lambda length: fixed_pattern(root(length)),
    "longnet": lambda length: LongNet(*BRANCHES),
    "longformer": lambda length: LocalGlobal(128, (0, 1, 2, 3)),
    "big bird": lambda length: BigBird(64, 3),
}


def dense(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = True) -> Tensor:
    """PyTorch's own, which keeps no scores and skips what is masked."""
    return scaled_dot_product_attention(query, key, value, is_causal=causal)


def by_pattern(name: str, *, causal: bool = True) -> Method:
    """Sparse attention under one of the patterns."""
    make = PATTERNS[name]

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return sparse_attention(query, key, value, make(query.shape[2]))

    return Method(attend, lambda length: pattern_cost(make(length), length, WIDTH).scores, causal)


def flex(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """FlexAttention as it comes, not compiled: all scores, then the mask of the local window."""
    rule, length = PATTERNS["local"](0).rule, query.shape[2]
    mask = create_block_mask(lambda b, h, i, j: rule(i, j), None, None, length, length, "cpu")
    return flex_attention(query, key, value, block_mask=mask)


def chance(*shape: int) -> Tensor:
    """Standard normal numbers, the same ones in every call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def by_hashing(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Reformer: the queries are the keys, in buckets of about one chunk."""
    pairs = max(1, query.shape[2] // CHUNK // 2)
    buckets = lsh_buckets(query, chance(HEADS, WIDTH, ROUNDS, pairs))
    return lsh_attention(query, value, buckets, chunk_size=CHUNK, causal=True)


def by_clusters(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """One softmax for each of the clusters of queries."""
    clusters = cluster_queries(query, chance(WIDTH, 31), KEPT)
    return clustered_attention(query, key, value, clusters)


def linformer(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Keys and values projected along the sequence."""
    projection = chance(1, KEPT, key.shape[2])
    return linformer_attention(query, key, value, projection, projection)


def performer(query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> Tensor:
    """Positive random features."""
    generator = torch.Generator().manual_seed(0)
    directions = orthogonal_directions(FEATURES, WIDTH, generator=generator)
    return performer_attention(query, key, value, directions, causal=causal)


def by_indexer(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """DeepSeek's, with one small head that scores every key."""
    length = query.shape[2]
    index_query, index_key = (
        chance(1, INDEXER_HEADS, length, INDEXER_WIDTH),
        chance(1, length, INDEXER_WIDTH),
    )
    weights = torch.ones(1, INDEXER_HEADS, length)
    return indexed_attention(query, key, value, index_query, index_key, weights, num_keys=SELECTED)


METHODS: dict[str, Method] = {
    "local": by_pattern("local"),
    "atrous": by_pattern("atrous"),
    "strided": by_pattern("strided"),
    "fixed": by_pattern("fixed"),
    "longnet": by_pattern("longnet")._replace(
        attend=lambda q, k, v: longnet_attention(q, k, v, *BRANCHES)
    ),
    "flex, local": Method(flex, lambda length: dense_cost(length, WIDTH).scores),
    "longformer": by_pattern("longformer", causal=False),
    "big bird": by_pattern("big bird", causal=False),
    "reformer": Method(by_hashing, lambda length: ROUNDS * 2 * CHUNK * length),
    "clustered": Method(by_clusters, lambda length: KEPT * length, causal=False),
    "linformer": Method(linformer, lambda length: KEPT * length, causal=False),
    "nystrom": Method(
        lambda q, k, v: nystrom_attention(q, k, v, KEPT),
        lambda length: 2 * KEPT * length + KEPT**2,
        causal=False,
    ),
    "performer": Method(
        partial(performer, causal=False), lambda length: 2 * FEATURES * length, causal=False
    ),
    "performer, causal": Method(
        partial(performer, causal=True), lambda length: 2 * FEATURES * length
    ),
    "indexer": Method(by_indexer, lambda length: (INDEXER_HEADS * length + SELECTED) * length),
}


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
    attend = dense if method == "dense" else METHODS[method].attend
    inputs = inputs_of(length)
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
    inputs, (attend, scores, causal) = inputs_of(length), METHODS[method]
    pair, times = (attend, partial(dense, causal=causal)), ([], [])
    for n in range(rounds + 1):  # the first call pays for what later ones find ready
        for each, measured in zip(pair, times, strict=True):
            taken = seconds(each, inputs)
            measured += [taken] if n else []
    ours, full = (statistics.median(each) for each in times)
    row = {
        "method": method,
        "length": length,
        "seconds": round(ours, 5),
        "ratio": round(ours / full, 4),
    }
    row |= {"scores": scores(length), "rounds": rounds}
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
    for method in METHODS:
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
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
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
            whole = METHODS[method].scores(length) > MOST_SCORES and method != "indexer"
            if (method, length) in known or whole or time.monotonic() > end:
                continue
            row = measure(method, length, rounds=5 if length < 16384 else 3)
            rows = [*read_rows(NAME), row]
            write_rows(NAME, WHAT, rows, exponents=exponents(rows))
            tqdm.write(
                f"{method:17} {length:6}  {row['ratio']:8.3f} x dense  {row['mib']:8.1f} MiB"
            )
    for method, found in exponents(read_rows(NAME)).items():
        print(f"{method:17}", *(f"{kind} {value:.2f}" for kind, value in found.items()), sep="  ")


if __name__ == "__main__":
    main()
