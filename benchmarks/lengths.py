"""Trained on rows of 20 tokens, asked for 40 and 80: which positions still count?

Every row is one training run of a decoder with two layers. Only its positions differ; the task, the rows, the
initialization, the steps and the learning rate are the same. "right" has a list for each way to use the trained
model: the share of right answers in rows of 20, 40 and 80 tokens, 500 rows each. A model with rotary positions is used in
four ways, as it is and with its frequencies scaled for the longer row; none of them trains. About ten minutes
of one processor.

Usage: OMP_NUM_THREADS=1 python benchmarks/lengths.py
"""

import torch
from record import measure_missing

from tested_transformer.experiments.ch18_lengths import (
    LENGTHS,
    RATE,
    SCHEMES,
    STEPS,
    TASKS,
    TRAINED,
    measure_schemes,
    train_lengths,
)

NAME = "lengths"
WHAT = (
    f"share of right answers in rows of {LENGTHS} tokens, 500 rows each, of a decoder with 2 layers, 4 heads and "
    f"D = 64 after {STEPS} steps of Adam on rows of {TRAINED} tokens, at a learning rate of {RATE}; counting: whole "
    "numbers in the last half of a row; latest: the last of four digits in a row of letters"
)


def measure(task: str, scheme: str, seed: int) -> dict:
    """One training run, from a seed that sets the weights and the rows."""
    torch.set_num_threads(1)
    right = measure_schemes(train_lengths(task, scheme, seed), task, scheme)
    rounded = {name: [round(share, 4) for share in shares] for name, shares in right.items()}
    return {"task": task, "scheme": scheme, "seed": seed, "right": rounded}


def main() -> None:
    """Measure the runs that are missing."""
    wanted = (
        {"task": task, "scheme": scheme, "seed": seed}
        for seed in range(3) for task in TASKS for scheme in SCHEMES
    )  # fmt: skip
    measure_missing(NAME, WHAT, wanted, measure, ["task", "scheme", "seed", "right"])


if __name__ == "__main__":
    main()
