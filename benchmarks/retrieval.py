"""Can a small model that looks up names of numbers do what a larger one does that has learned them?

Every row is one training run on the names of 700 numbers. "right" is the share of numbers whose name is predicted
without a mistake: of those in training, of 299 numbers whose names were added to the database afterwards, and of the
first 700 after all names were changed; "others' neighbors" is the first test with neighbors of other numbers. About
six minutes of one processor.

Usage: OMP_NUM_THREADS=1 python benchmarks/retrieval.py
"""

import time

from record import measure_missing

from tested_transformer.experiments.ch22_facts import (
    BATCH,
    MODELS,
    RATES,
    STEPS,
    build,
    right_names,
    fact_sets,
    train,
)

NAME = "retrieval"
WHAT = (
    "share of numbers whose name, three of 30 syllables, is predicted without a mistake after training on the names of "
    f"700 numbers: {STEPS} steps of Adam with {BATCH} sequences of two names each, peak learning rates {RATES}; "
    "seconds are those of one processor, beside other work"
)
SETS = fact_sets()


def measure(model: str, seed: int) -> dict:
    """One training run, from a seed that sets the weights and the order of the numbers."""
    network, begin = build(model, seed), time.process_time()
    facts, known = SETS["facts of training"]
    train(network, facts, known, seed, steps=STEPS, rate=RATES[model])
    seconds = time.process_time() - begin
    right = {name: right_names(network, *given) for name, given in SETS.items()}
    right["others' neighbors"] = right_names(network, facts, known, others=True)
    return {
        "model": model, "seed": seed, "parameters": sum(w.numel() for w in network.parameters()),
        "seconds": round(seconds, 1), "right": {name: round(r, 4) for name, r in right.items()},
    }  # fmt: skip


def main() -> None:
    """Measure the runs that are missing."""
    wanted = ({"model": model, "seed": seed} for seed in range(3) for model in MODELS)
    measure_missing(NAME, WHAT, wanted, measure, ["model", "seed", "seconds", "right"])


if __name__ == "__main__":
    main()
