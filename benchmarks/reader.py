"""Does a longer training, a larger state or a wider MLP replace attention? The readers of chapter 2.

A GRU reads up to twelve pairs of a label and a digit and is asked for each digit. It answers from its
last state, or by attention with one of three scores. Each is trained until its accuracy on validation
lists of twelve pairs stops improving (`ch02_reader.train` says when that is), and tested on other
lists. One has attention and no GRU: a linear layer makes the vector of each pair from that pair alone.
The smaller reader without attention is also trained with a wider MLP, and on a longer, fixed
schedule. The record is written after each reader, and a run goes on where the last one stopped.

Usage: OMP_NUM_THREADS=1 python benchmarks/reader.py [--seeds 3] [--only NAME]
"""

import argparse
import time

import torch
from record import measure_missing

from tested_transformer.experiments.ch02_reader import (
    READERS,
    accuracy,
    new_reader,
    train,
    train_with_cosine,
)

NAME = "reader"
MOST_BATCHES = 40_000
WITH_COSINE, COSINE_BATCHES = "last state of 32, cosine", 24_000
LENGTHS = (1, 2, 4, 8, 12)
WHAT = (
    "right: the fraction of right answers on 2,000 lists of 1 to 12 pairs, after training until the "
    "accuracy on other lists of 12 pairs (measured every 250 batches) stops improving; "
    f"cosine: after {COSINE_BATCHES:,} batches with a learning rate that falls to 0"
)


def measure(model: str, seed: int) -> dict:
    """Train one reader until it stops improving, or on the fixed schedule, and test it."""
    reader, began = new_reader(model.removesuffix(", cosine"), seed), time.process_time()
    if model == WITH_COSINE:
        measured = train_with_cosine(reader, seed, COSINE_BATCHES)
    else:
        measured = train(reader, seed, MOST_BATCHES)
    return {
        "model": model, "seed": seed,
        "parameters": sum(p.numel() for p in reader.parameters()),
        "batches": 250 * len(measured),
        "stopped": 250 * len(measured) < MOST_BATCHES,
        "cpu_seconds": round(time.process_time() - began, 1),
        "right": {str(n): round(accuracy(reader, n, count=2000), 4) for n in LENGTHS},
        "measured": [round(value, 3) for value in measured],
    }  # fmt: skip


def main() -> None:
    """Measure what is missing, and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=[*READERS, WITH_COSINE], action="append")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    wanted = [
        {"model": model, "seed": seed}
        for seed in range(chosen.seeds)
        for model in chosen.only or [*READERS, WITH_COSINE]
    ]
    shown = ("model", "seed", "parameters", "batches", "cpu_seconds", "right")
    measure_missing(NAME, WHAT, wanted, measure, shown)


if __name__ == "__main__":
    main()
