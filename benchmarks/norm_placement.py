"""Where does the norm go? Gradients at the start, and training with and without warm-up.

Four wirings (post, pre, deep, dual), several depths and seeds, on a small task: read a German number
word, write its three digits. Chapter 7 plots what this stores and runs one row again. The record is
written after each seed. About 15 minutes of one processor for 3 seeds.

Usage: OMP_NUM_THREADS=1 python benchmarks/norm_placement.py [--seeds 3]
"""

import argparse
import datetime
import json
import platform
import time
from pathlib import Path
from statistics import median

import torch

from tested_transformer.experiments import ch07_norm_placement as experiment
from tested_transformer.layers.residual import NORM_PLACEMENTS

RESULTS = Path(__file__).parent / "results" / "norm_placement.json"
DEPTHS_AT_START, SEEDS_AT_START = (2, 6, 12, 24), 5
RUNS = [  # norm_placement, depth, steps of warm-up, rate
    (norm_placement, depth, warmup, experiment.RATE)
    for depth in (2, 6, 12)
    for norm_placement in NORM_PLACEMENTS
    for warmup in (0, experiment.WARMUP)
    if warmup == 0 or norm_placement in ("post", "pre")
]
RUNS += [(norm_placement, 6, experiment.WARMUP, 3e-3) for norm_placement in ("post", "pre")]


def rounded(numbers: list[float], digits: int = 4) -> list[float]:
    """So many significant digits."""
    return [float(f"{n:.{digits}g}") for n in numbers]


def at_the_start() -> dict:
    """Wiring -> depth -> for each seed the gradient norm of every layer."""
    return {
        norm_placement: {
            str(depth): [
                rounded(experiment.gradient_norms(norm_placement, depth, seed=seed))
                for seed in range(SEEDS_AT_START)
            ]
            for depth in DEPTHS_AT_START
        }
        for norm_placement in NORM_PLACEMENTS
    }


def trained(
    norm_placement: str,
    depth: int,
    warmup: int,
    rate: float,
    seed: int,
    steps: int = experiment.STEPS,
) -> dict:
    """Train one stack and measure it."""
    model, losses = experiment.train(
        norm_placement, depth, warmup=warmup, rate=rate, seed=seed, steps=steps
    )
    without = [experiment.share_right(model, without=n) for n in range(depth)]
    return {
        "norm_placement": norm_placement, "depth": depth, "warmup": warmup, "rate": rate, "seed": seed,
        "loss": rounded([sum(losses[n : n + 20]) / 20 for n in range(0, steps, 20)]),
        "held_out_loss": rounded([experiment.held_out_loss(model)])[0],
        "share_right": experiment.share_right(model),
        "share_right_without_layer": without,
    }  # fmt: skip


def as_text(record: dict) -> str:
    """JSON with one line a run, so that a change can be read."""
    parts = {name: json.dumps(value) for name, value in record.items()}
    parts["runs"] = "[\n  " + ",\n  ".join(map(json.dumps, record["runs"])) + "\n ]"
    return "{\n" + ",\n".join(f' "{name}": {text}' for name, text in parts.items()) + "\n}\n"


def store(path: Path, record: dict, runs: list[dict], seeds: int) -> None:
    """Write what was measured so far, with versions and date."""
    record |= {
        "runs": runs,
        "seeds": seeds,
        "processor": platform.machine(),
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
    }
    path.write_text(as_text(record), encoding="utf-8")


def print_table(runs: list[dict]) -> None:
    """Medians over the seeds."""
    print(
        f"{'norm_placement':8}{'depth':>6}{'warm-up':>9}{'rate':>8}{'loss':>9}{'held out':>10}{'right':>8}"
    )
    for norm_placement, depth, warmup, rate in RUNS:
        same = [
            r for r in runs
            if (r["norm_placement"], r["depth"], r["warmup"], r["rate"]) == (norm_placement, depth, warmup, rate)
        ]  # fmt: skip
        loss = median(r["loss"][-1] for r in same)
        held, right = (median(r[name] for r in same) for name in ("held_out_loss", "share_right"))
        print(f"{norm_placement:8}{depth:6}{warmup:9}{rate:8}{loss:9.4f}{held:10.4f}{right:8.1%}")


def main() -> None:
    """Measure everything, print a table and store it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    start, runs = time.process_time(), []
    record = {
        "what": "gradient norm of each layer's last matrix before training; cross-entropy of a digit "
        f"during training ({experiment.STEPS} steps of {experiment.BATCH}, means of 20), and of 200 "
        "held-out numbers, of which share_right are read right; float64",
        "gradient_norms": at_the_start(),
    }
    for seed in range(seeds):
        for place, run in enumerate(RUNS, start=1):
            runs.append(trained(*run, seed))
            spent = time.process_time() - start
            print(f"\rseed {seed}: {place} of {len(RUNS)}, {spent:.0f} s ", end="", flush=True)
        print()
        store(RESULTS, record, runs, seed + 1)
    print_table(runs)


if __name__ == "__main__":
    main()
