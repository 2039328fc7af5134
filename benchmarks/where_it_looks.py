"""Where does a model look that translates every number? The same question to models of other seeds and heads.

Small models learn the numbers from 1 to 999, 300 of them held back. For the 72 numbers such as 24
(und, tens after units) it is counted which German word gets the largest weight, mean of the heads,
when the English tens word is said, and when the unit is. A seed fixes the initial weights and the order
of the batches; two more models have them from two seeds, so that one changes without the other. "What
an encoder state holds" prints what this stores. The record is written after each model, and a run goes
on where the last one stopped. About half a minute of one processor for each of 8 models.

Usage: OMP_NUM_THREADS=1 python benchmarks/where_it_looks.py [--seeds 3]
"""

import argparse
import time

import torch
from record import measure_missing

from tested_transformer.analysis.translation import find_mistakes
from tested_transformer.data import make_batch, number_pair
from tested_transformer.experiments.ch10_number_models import first_numbers, first_trainer
from tested_transformer.training.trainer import Recipe, Trainer

NAME = "where_it_looks"
HEADS = (1, 4)
CROSSED = ((2, 0), (0, 2))  # seeds of the initial weights and of the order, with one head
WHAT = (
    "of the 72 numbers from 21 to 99 with und: how often the English tens word looks most at a German "
    "tens morpheme, or at und, and the unit word at the unit; told the right words before"
)


def looks(trainer: Trainer) -> dict[str, int]:
    """How often the largest weight is where a reader would expect it, and how often at und."""
    counts = {"tens_at_tens": 0, "tens_at_und": 0, "unit_at_unit": 0}
    model = trainer.model.eval()
    for number in (n for n in range(21, 100) if n % 10):
        pair = number_pair([number])
        batch = make_batch([pair], trainer.source, trainer.target)
        with torch.no_grad():
            _, weights = model(batch.source, batch.target, return_weights=True)
        # the places that the two English words look at most
        tens, unit = weights.cross[-1][0].mean(0).argmax(-1)[:2].tolist()
        counts["tens_at_tens"] += 2 <= tens < len(pair.source)
        counts["tens_at_und"] += tens == 1
        counts["unit_at_unit"] += unit == 0
    return counts


def row(heads: int, seed: int, order: int) -> dict:
    """Train one model, initialized from a seed, on batches in the order of another, and look."""
    made, split = first_trainer(Recipe(seed=seed), num_heads=heads), first_numbers()
    recipe, unseen = Recipe(seed=order), split.test
    trainer = Trainer(made.model, split.train, made.source, made.target, recipe, held_out=unseen)
    began = time.process_time()
    trainer.run(progress=False)
    seconds = time.process_time() - began
    wrong = len(find_mistakes(trainer.model, unseen, trainer.source, trainer.target))
    right = round(1 - wrong / len(unseen), 4)
    run = {"heads": heads, "seed": seed, "order": order}
    return run | {"cpu_seconds": round(seconds, 1), "right": right} | looks(trainer)


def main() -> None:
    """Train what is not in the record yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    wanted = [
        {"heads": heads, "seed": seed, "order": seed} for heads in HEADS for seed in range(seeds)
    ]
    wanted += [{"heads": 1, "seed": seed, "order": order} for seed, order in CROSSED]
    shown = (
        "heads",
        "seed",
        "order",
        "cpu_seconds",
        "right",
        "tens_at_tens",
        "tens_at_und",
        "unit_at_unit",
    )
    measure_missing(NAME, WHAT, wanted, row, shown)


if __name__ == "__main__":
    main()
