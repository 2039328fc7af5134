"""What a recipe changes: one model, four ways to train it, watched while it learns.

The book's own model (600 steps of 64 numbers, one cycle), the same with the paper's schedule (same
warm-up, same peak), with label smoothing, and with numbers sampled uniformly below a million, as its first
version had them. Every 50 steps it is asked for 500 numbers that it never saw; at the end for numbers
of each size. One row takes about two minutes of one processor core. The file is written after every
row; a second start goes on where the first stopped. Chapter 10 shows what this stores.

Usage: OMP_NUM_THREADS=1 python benchmarks/recipes.py [--seeds 1]
"""

import argparse
import math
import random
import time

import torch
from record import measure_missing

from tested_transformer.analysis.translation import find_mistakes, translate
from tested_transformer.data import (
    Pair,
    Split,
    make_batch,
    make_batches,
    number_pair,
    single_numbers,
)
from tested_transformer.experiments.ch10_number_models import (
    book_numbers,
    first_numbers,
    number_trainer,
)
from tested_transformer.training.trainer import Recipe, Trainer, evaluate

NAME = "recipes"
EVERY, UNSEEN, LONGEST = 50, 500, 20  # the longest number has 12 words
PEAK, WARMUP, D_MODEL, STEPS = 2e-3, 0.15, 128, 600
FACTOR = PEAK * math.sqrt(D_MODEL * WARMUP * STEPS)  # the paper's rate then has the same peak
VARIANTS = {
    "one_cycle": {},
    "paper": {"schedule": "paper", "rate": FACTOR},
    "label smoothing 0.1": {"label_smoothing": 0.1},
    "sampled uniformly": {},
}
WHAT = (
    f"the book's model, {STEPS} steps with several recipes: training loss (means of 10 steps), and every "
    f"{EVERY} steps loss, share of likeliest words and share of {UNSEEN} unseen numbers translated "
    "word for word; at the end the share of 2,000, and how many unseen numbers were asked and how many "
    "are right: for each number of digits, and of the 300 below a thousand that the book holds back; "
    "watched: what the model says to 24, and its last cross-attention, mean of the heads"
)
WATCHED = 24  # in no training set here
WATCHED_AT = (0, 50, 100, 150, 200, 300, 600)


def split_of(variant: str) -> Split:
    """20,000 numbers to learn from; in one variant hardly any of them is below a thousand."""
    return single_numbers() if variant == "sampled uniformly" else book_numbers()


def by_size(trainer: Trainer, split: Split) -> dict:
    """Unseen numbers with one to six digits, and those below a thousand that the book holds back."""
    seen, found = set(split.train), {}
    for digits in range(1, 7):
        every = range(10 ** (digits - 1), 10**digits)
        some = every if len(every) <= 900 else random.Random(digits).sample(every, 1000)
        pairs = [pair for n in some if (pair := number_pair([n])) not in seen]
        found[str(digits)] = count(trainer, pairs)
    held_back = [pair for pair in first_numbers().test if pair not in seen]
    return {"by_size": found, "held_back": count(trainer, held_back)}


def count(trainer: Trainer, pairs: list[Pair]) -> dict:
    """How many numbers are asked, how many are right, and what is said to the first wrong ones."""
    mistakes = wrong(trainer, pairs)
    said = [
        {"source": " ".join(m.pair.source), "said": " ".join(m.translation)} for m in mistakes[:4]
    ]
    return {"asked": len(pairs), "right": len(pairs) - len(mistakes), "mistakes": said}


def wrong(trainer: Trainer, pairs: list[Pair]) -> list:
    """What the model gets wrong."""
    return find_mistakes(trainer.model, pairs, trainer.source, trainer.target, max_new=LONGEST)


@torch.no_grad()
def watch(trainer: Trainer) -> dict:
    """What the model says to one number, and where the last cross-attention looks, told the words."""
    words, pair = (trainer.source, trainer.target), number_pair([WATCHED])
    batch = make_batch([pair], *words)
    _, weights = trainer.model(batch.source, batch.target, return_weights=True)
    said = translate(trainer.model, [pair.source], *words, max_new=LONGEST)[0]
    table = weights.cross[-1][0].mean(0)  # L S
    return {
        "step": trainer.step, "said": " ".join(said),
        "weights": [[round(w, 3) for w in row] for row in table.tolist()],
    }  # fmt: skip


def row(variant: str, seed: int) -> dict:
    """Train one model and watch it."""
    split, recipe = split_of(variant), Recipe(seed=seed, **VARIANTS[variant])
    trainer, seconds = number_trainer(recipe, split=split), 0.0
    unseen = split.test[:UNSEEN]
    batches = make_batches(unseen, trainer.source, trainer.target)
    evaluations, watched = [], [watch(trainer)]
    while trainer.step < recipe.steps:
        start = time.process_time()
        trainer.run(EVERY, progress=False)
        seconds += time.process_time() - start
        told = evaluate(trainer.model, batches)
        evaluations.append({
            "step": trainer.step, "loss": float(f"{told.loss:.4g}"),
            "accuracy": round(told.accuracy, 4),
            "right": round(1 - len(wrong(trainer, unseen)) / UNSEEN, 4),
        })  # fmt: skip
        if trainer.step in WATCHED_AT:
            watched.append(watch(trainer))
    losses = trainer.history.losses
    return {
        "variant": variant, "seed": seed, "cpu_seconds": round(seconds, 1),
        "unseen": count(trainer, split.test),
        **by_size(trainer, split),
        "losses": [float(f"{sum(losses[n : n + 10]) / 10:.4g}") for n in range(0, recipe.steps, 10)],
        "evaluations": evaluations,
        "watched": watched,
    }  # fmt: skip


def main() -> None:
    """Measure what is missing, row by row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", choices=VARIANTS, nargs="+", default=list(VARIANTS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    wanted = [{"variant": v, "seed": n} for n in range(options.seeds) for v in options.only]
    shown = ("variant", "seed", "cpu_seconds", "unseen", "held_back", "by_size")
    measure_missing(NAME, WHAT, wanted, row, shown)


if __name__ == "__main__":
    main()
