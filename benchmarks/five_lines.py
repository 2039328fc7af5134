"""From GPT-2 to Llama, one line at a time: which of the five changes helps a small model that counts on?

Every row is one training run: a decoder of two layers reads English number words, "twenty three , twenty four
, ...", and is trained for the same number of steps on the same sequences. A variant is GPT-2 with one change,
with all five ("Llama"), with four of them, or with another choice of chapter 13, each at three learning rates. "loss" is in nats per token after the first
number, "right" the share of whole numbers, both on 500 sequences drawn as in training, more than half of which
occur there; "unseen" is the share of whole numbers on 500 sequences that this training does not hold
(stored at a learning rate of 0.01). Chapter 13 prints the rows and runs one of them again. About half an hour of one processor.

Usage: OMP_NUM_THREADS=1 python benchmarks/five_lines.py
"""

import torch
from record import measure_missing

from tested_transformer.experiments.ch13_counting import (
    FOUR_OF_FIVE,
    LINES,
    LLAMA,
    counting_config,
    measure_counting,
    train_counting,
    unseen_sequences,
)
from tested_transformer.models.language_model import LanguageModel

NAME = "five_lines"
STEPS = 400
WHAT = (
    "loss per token and share of whole numbers right, on 500 sequences of 48 tokens drawn as in training, and "
    "that share on 500 sequences that this training does not hold (unseen, at a learning rate of 0.01), of a "
    f"decoder with 2 layers and D = 64 that counts on in English number words, after {STEPS} steps of Adam, "
    "32 new sequences each"
)
VARIANTS = {
    "GPT-2": {},
    **LINES,
    "Llama": LLAMA,
    **FOUR_OF_FIVE,
    "no positions": {"positions": "none", "max_length": None},
    "post-norm": {"norm_placement": "post"},
    "untied": {"tied_output": False},
    "Llama, QK-norm": {**LLAMA, "qk_norm": True},
}


def measure(variant: str, lr: float, seed: int) -> dict:
    """One training run, from a seed that sets the weights and the sequences."""
    torch.manual_seed(seed)
    model = LanguageModel(counting_config(**VARIANTS[variant]))
    curve = train_counting(model, seed, STEPS, lr=lr)
    loss, right = measure_counting(model.eval())
    _, unseen = measure_counting(model, ids=unseen_sequences(500, seed, STEPS))
    return {
        "variant": variant, "lr": lr, "seed": seed,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "train": [round(sum(curve[i : i + 50]) / 50, 3) for i in range(0, STEPS, 50)],
        "loss": round(loss, 4), "right": round(right, 4), "unseen": round(unseen, 4),
    }  # fmt: skip


def main() -> None:
    """Measure the runs that are missing."""
    everywhere = ["GPT-2", *LINES, "Llama", "Llama without rotary positions"]
    grid = [(variant, lr) for lr in (0.01, 0.003, 0.03) for variant in everywhere]
    grid += [(variant, 0.01) for variant in VARIANTS if variant not in everywhere]
    grid += [(variant, 0.003) for variant in ("no positions", "post-norm", "untied")]
    grid += [("post-norm", 0.03), ("Llama, QK-norm", 0.003), ("Llama, QK-norm", 0.03)]
    wanted = (
        {"variant": variant, "lr": lr, "seed": seed} for variant, lr in grid for seed in range(3)
    )
    shown = ["variant", "lr", "seed", "parameters", "loss", "right", "unseen"]
    measure_missing(NAME, WHAT, wanted, measure, shown)


if __name__ == "__main__":
    main()
