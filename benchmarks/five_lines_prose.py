"""From GPT-2 to Llama on English prose: the variants of five_lines.py on the text that Python brings along.

Every row is one training run: a decoder of two layers reads the prose of pydoc_data.topics (Python 3.11, pinned by
a hash) in a byte-level BPE vocabulary of 512 tokens. "loss" is in nats per token of the held-out paragraphs.
Chapter 13 prints the rows. About twelve minutes of one processor.

Usage: OMP_NUM_THREADS=1 python benchmarks/five_lines_prose.py
"""

import torch
from record import measure_missing

from tested_transformer.data.prose import python_prose
from tested_transformer.experiments.ch13_counting import FOUR_OF_FIVE, LINES, LLAMA
from tested_transformer.experiments.ch13_prose import (
    measure_prose,
    prose_config,
    prose_ids,
    train_prose,
    train_tokenizer,
)
from tested_transformer.models.language_model import LanguageModel

NAME = "five_lines_prose"
WHAT = (
    "loss per token on held-out paragraphs of Python's language reference, of a decoder with 2 layers and D = 64, "
    "after `steps` steps of Adam on 32 pieces of 64 tokens each"
)
VARIANTS = {"GPT-2": {}, **LINES, "Llama": LLAMA, **FOUR_OF_FIVE}


def measure(variant: str, steps: int, seed: int) -> dict:
    """One training run, from a seed that sets the weights and the pieces of text."""
    learned, held_out = python_prose()
    tokenizer = train_tokenizer(learned)
    torch.manual_seed(seed)
    model = LanguageModel(prose_config(**VARIANTS[variant]))
    curve = train_prose(model, prose_ids(learned, tokenizer), seed, steps)
    return {
        "variant": variant, "steps": steps, "seed": seed,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "train": [round(sum(curve[i : i + 50]) / 50, 3) for i in range(0, steps, 50)],
        "loss": round(measure_prose(model.eval(), prose_ids(held_out, tokenizer)), 4),
    }  # fmt: skip


def main() -> None:
    """Measure the runs that are missing."""
    grid = [(variant, 400) for variant in VARIANTS]
    grid += [(variant, 1200) for variant in ("GPT-2", "rotary positions", "Llama")]
    wanted = (
        {"variant": variant, "steps": steps, "seed": seed}
        for variant, steps in grid
        for seed in range(3)
    )
    measure_missing(NAME, WHAT, wanted, measure, ["variant", "steps", "seed", "parameters", "loss"])


if __name__ == "__main__":
    main()
