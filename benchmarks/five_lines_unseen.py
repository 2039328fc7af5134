"""GPT-2, rotary positions and Llama on sequences that their training has not seen (chapter 13).

The 500 test sequences of `five_lines.py` are drawn as those of training, so more than half of them occur there.
Here the best learning rate of the three variants is run again, and each model is measured on 500 sequences that
its own training does not hold. About ten minutes of one processor.

Usage: OMP_NUM_THREADS=1 python benchmarks/five_lines_unseen.py
"""

import torch
from five_lines import STEPS, VARIANTS
from record import measure_missing

from tested_transformer.experiments.ch13_counting import (
    counting_config,
    measure_counting,
    train_counting,
    unseen_sequences,
)
from tested_transformer.models.language_model import LanguageModel

NAME = "five_lines_unseen"
WHAT = (
    "share of whole numbers right, on 500 sequences drawn as in training (right) and on 500 of them that the "
    f"training does not hold (unseen), after {STEPS} steps of Adam at a learning rate of 0.01"
)


def measure(variant: str, seed: int) -> dict:
    """One training run, and both shares."""
    torch.manual_seed(seed)
    model = LanguageModel(counting_config(**VARIANTS[variant]))
    train_counting(model, seed, STEPS, lr=0.01)
    _, right = measure_counting(model.eval())
    _, unseen = measure_counting(model, ids=unseen_sequences(500, seed, STEPS))
    return {"variant": variant, "seed": seed, "right": round(right, 4), "unseen": round(unseen, 4)}


def main() -> None:
    """Measure the runs that are missing."""
    wanted = (
        {"variant": variant, "seed": seed}
        for seed in range(3)
        for variant in ("GPT-2", "rotary positions", "Llama", "Llama without rotary positions")
    )
    measure_missing(NAME, WHAT, wanted, measure, ["variant", "seed", "right", "unseen"])


if __name__ == "__main__":
    main()
