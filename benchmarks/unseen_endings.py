"""Does the small number model swap digits that it never saw together? Whole endings are hidden from it.

Of the 72 endings from 21 to 99 that have units, 24 are drawn, and no number with one of them is in the
training set: 240 of the numbers below a thousand. Every digit stays in use, as units and as tens. The page
"The first ten minutes" prints what this stores. About half a minute of one processor for each of 3 models.

Usage: OMP_NUM_THREADS=1 python benchmarks/unseen_endings.py [--seeds 3]
"""

import argparse
import random

import torch
from record import measure_missing

from tested_transformer.analysis.translation import find_mistakes
from tested_transformer.experiments.ch10_number_models import (
    FIRST_SIZES,
    number_trainer,
    numbers_without,
)
from tested_transformer.training.trainer import Recipe

NAME = "unseen_endings"
HIDDEN = 24
WHAT = (
    "numbers below a thousand whose two last digits were never together in training: how many of them "
    "are translated right; the seed draws the endings, the initial weights and the order"
)


def hidden_endings(seed: int) -> set[int]:
    """Two-digit endings to hide, such that every digit is still seen as units and as tens."""
    endings = [number for number in range(21, 100) if number % 10]
    draw = random.Random(seed)
    while True:
        hidden = set(draw.sample(endings, HIDDEN))
        seen = [number for number in endings if number not in hidden]
        if len({n % 10 for n in seen}) == 9 and len({n // 10 for n in seen}) == 8:
            return hidden


def row(seed: int) -> dict:
    """Train one model without the hidden endings, and count."""
    hidden = hidden_endings(seed)
    split = numbers_without({number for number in range(1, 1000) if number % 100 in hidden})
    trainer = number_trainer(Recipe(seed=seed), split=split, **FIRST_SIZES)
    trainer.run(progress=False)
    wrong = find_mistakes(trainer.model, split.test, trainer.source, trainer.target)
    return {"seed": seed, "unseen": len(split.test), "right": len(split.test) - len(wrong)}


def main() -> None:
    """Train what is not in the record yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    wanted = [{"seed": seed} for seed in range(seeds)]
    measure_missing(NAME, WHAT, wanted, row, ("seed", "unseen", "right"))


if __name__ == "__main__":
    main()
