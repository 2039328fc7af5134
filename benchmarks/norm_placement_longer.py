"""Does post-norm train at 12 layers if it gets more steps? Three times as many, without warm-up.

The stack, the task and the measures are those of `norm_placement.py`. Chapter 7 and its deeper pages show
what this stores. The record is written after each run. About 5 minutes of one processor.

Usage: OMP_NUM_THREADS=1 python benchmarks/norm_placement_longer.py [--seeds 3]
"""

import argparse
import datetime
import platform
from pathlib import Path

import torch
from norm_placement import as_text, rounded

from tested_transformer.experiments import ch07_norm_placement as experiment

RESULTS = Path(__file__).parent / "results" / "norm_placement_longer.json"
DEPTH, STEPS = 12, 1200


def trained(seed: int) -> dict:
    """Train one post-norm stack and measure it."""
    model, losses = experiment.train("post", DEPTH, seed=seed, steps=STEPS)
    return {
        "norm_placement": "post", "depth": DEPTH, "warmup": 0, "rate": experiment.RATE,
        "steps": STEPS, "seed": seed,
        "loss": rounded([sum(losses[n : n + 20]) / 20 for n in range(0, STEPS, 20)]),
        "held_out_loss": rounded([experiment.held_out_loss(model)])[0],
        "share_right": experiment.share_right(model),
        "share_right_without_layer": [experiment.share_right(model, without=n) for n in range(DEPTH)],
    }  # fmt: skip


def main() -> None:
    """Train one stack for each seed and store what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    runs = []
    for seed in range(seeds):
        runs.append(trained(seed))
        print(f"seed {seed}: {runs[-1]['share_right']:.1%} right", flush=True)
        record = {
            "what": f"cross-entropy of a digit during training ({STEPS} steps of {experiment.BATCH}, "
            "means of 20), and of 200 held-out numbers, of which share_right are read right; float64",
            "runs": runs,
            "seeds": seed + 1,
            "processor": platform.machine(),
            "torch": torch.__version__,
            "date": datetime.date.today().isoformat(),
        }
        RESULTS.write_text(as_text(record), encoding="utf-8")


if __name__ == "__main__":
    main()
