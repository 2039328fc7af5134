"""How many tokens does one call of the prose model give, by draft and draft length?

Counts, no timings: the same on every machine up to rounding. The record is written after each row, and a
run goes on where the last one stopped.

Usage: OMP_NUM_THREADS=1 python benchmarks/speculative.py [--seeds 1]
"""

import argparse

from record import measure_missing

from tested_transformer.experiments.ch16_speculative import DRAFTS, measure_speculation

NAME = "speculative"
LENGTHS = (1, 2, 4, 8)
WHAT = (
    "six texts of 40 tokens from the prose model at temperature 1, by draft, draft length and seed: "
    "tokens per call of the target in whole rounds; accepted: the share of the checked draft tokens; "
    "overlap: the mean of sum(min(p, q)) over the positions of the texts"
)


def measure(draft: str, length: int, seed: int) -> dict:
    """One row."""
    found = measure_speculation(draft, length, seed)
    numbers = {name: round(value, 4) for name, value in found.items()}
    return {"draft": draft, "length": length, "seed": seed, **numbers}


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    wanted = [
        {"draft": draft, "length": length, "seed": seed}
        for draft in DRAFTS
        for length in LENGTHS
        for seed in seeds
    ]
    measure_missing(NAME, WHAT, wanted, measure, ("draft", "length", "seed", "tokens_per_call"))


if __name__ == "__main__":
    main()
