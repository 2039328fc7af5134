"""How many pairs of a key and a value does a matrix of 16 x 16 hold, when a small model is trained for it?

Every row is one training run of one layer with one head of 16 features: pairs are written, then read by their keys.
Only the mixer differs. "task" says whether keys are written once, or half of them again with another value, the
newest of which is asked for. "right" is the share of right values by the number of pairs, on 500 sequences each.
About ten minutes of one processor.

Usage: OMP_NUM_THREADS=1 python benchmarks/recall_capacity.py
"""

import time

import torch
from record import measure_missing

from tested_transformer.experiments.ch20_recall import (
    BATCH,
    COUNTS,
    MIXERS,
    RATE,
    STEPS,
    RecallModel,
    recall_accuracy,
    train_recall_model,
)

NAME = "recall_capacity"
TASKS = {"each key once": False, "keys written again": True}
WHAT = (
    "share of right values by the number of pairs, of one layer with one head of 16 features and 64 keys and values "
    f"to choose from, after {STEPS} steps of Adam with {BATCH} sequences each and a peak learning rate of {RATE}; "
    "seconds are those of one processor, beside other work"
)


def measure(task: str, mixer: str, seed: int) -> dict:
    """One training run, from a seed that sets the weights and the sequences."""
    torch.manual_seed(seed)
    model, begin = RecallModel(mixer), time.process_time()
    train_recall_model(model, seed, STEPS, rewrites=TASKS[task])
    seconds = time.process_time() - begin
    right = {
        str(pairs): round(recall_accuracy(model, pairs, rewrites=TASKS[task]), 4)
        for pairs in COUNTS
    }
    return {
        "task": task, "mixer": mixer, "seed": seed, "seconds": round(seconds, 1), "right": right,
    }  # fmt: skip


def main() -> None:
    """Measure the runs that are missing."""
    wanted = (
        {"task": task, "mixer": mixer, "seed": seed}
        for seed in range(3)
        for task in TASKS
        for mixer in MIXERS
    )
    measure_missing(NAME, WHAT, wanted, measure, ["task", "mixer", "seed", "seconds", "right"])


if __name__ == "__main__":
    main()
