"""How much faster is the fused backend than the plain one on a processor? It decides what "auto" takes.

Both answer the same calls in turns, on one thread; the number is the ratio of the medians of their
processor times, plain over fused, so above 1 the fused one is faster.

Usage: OMP_NUM_THREADS=1 python benchmarks/attention_cpu.py [--rounds 15]
"""

import argparse
import datetime
import json
import platform
import statistics
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
OPTIONS = {"full": {}, "causal": {"causal": True}, "window 128": {"causal": True, "window": 128}}


def seconds(backend: str, inputs: list[torch.Tensor], options: dict) -> float:
    """Processor time of one call, forward only."""
    start = time.process_time()
    attention(*inputs, **options, backend=backend)
    return time.process_time() - start


def ratio(shape: tuple[int, ...], options: dict, rounds: int) -> float:
    """Median time of the plain backend over that of the fused one, called in turns."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(shape, generator=generator) for _ in range(3)]
    times = {"plain": [], "fused": []}
    for backend in times:
        seconds(backend, inputs, options)  # the first call pays for what later ones find ready
    for _ in range(rounds):
        for backend, measured in times.items():
            measured.append(seconds(backend, inputs, options))
    return statistics.median(times["plain"]) / statistics.median(times["fused"])


def main() -> None:
    """Measure every shape with every option, print a table and store it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    table = {}
    print(f"{'plain / fused':20}", *(f"{name:>12}" for name in OPTIONS))
    with torch.no_grad():
        for name, shape in SHAPES.items():
            table[name] = {o: round(ratio(shape, given, rounds), 2) for o, given in OPTIONS.items()}
            print(f"{name:20}", *(f"{value:12.2f}" for value in table[name].values()), flush=True)
    record = {
        "what": "processor time, plain backend over fused backend, forward, float32, one thread",
        "shapes": SHAPES,
        "ratios": table,
        "rounds": rounds,
        "processor": platform.machine(),
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
    }
    RESULTS.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
