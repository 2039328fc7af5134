"""Does post-norm train at 12 layers if it gets more steps? Three times as many, without warm-up.

The stack, the task and the measures are those of `norm_placement.py`. Chapter 7 and its deeper pages show
what this stores. The record is written after each run. About 5 minutes of one processor.

Usage: OMP_NUM_THREADS=1 python benchmarks/norm_placement_longer.py [--seeds 3]
"""

import argparse
from pathlib import Path

import torch
from norm_placement import store, trained

from tested_transformer.experiments import ch07_norm_placement as experiment

RESULTS = Path(__file__).parent / "results" / "norm_placement_longer.json"
DEPTH, STEPS = 12, 1200
WHAT = (
    f"cross-entropy of a digit during training ({STEPS} steps of {experiment.BATCH}, means of 20), and of "
    "200 held-out numbers, of which share_right are read right; float64"
)


def main() -> None:
    """Train one post-norm stack for each seed and store what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    runs = []
    for seed in range(seeds):
        run = trained("post", DEPTH, 0, experiment.RATE, seed, steps=STEPS)
        runs.append(run | {"steps": STEPS})
        print(f"seed {seed}: {run['share_right']:.1%} right", flush=True)
        store(RESULTS, {"what": WHAT}, runs, seed + 1)


if __name__ == "__main__":
    main()
