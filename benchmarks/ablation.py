"""What breaks when one part of the model or of its training is taken out?

Every model of `tested_transformer.experiments.ch10_ablation` is trained like the book's own (600 steps of 64 single
numbers, here sampled uniformly below a million) and asked for 1,000 numbers that it never saw. One row takes about 95 seconds of one
processor core. The file is written after every row; a second start goes on where the first stopped.
Chapters 4, 6 and 10 show what this stores.

Usage: OMP_NUM_THREADS=1 python benchmarks/ablation.py [--seeds 1]
"""

import argparse
import math
import time

import torch
from record import measure_missing

from tested_transformer.analysis.translation import find_mistakes
from tested_transformer.data import Pair, make_batches, single_numbers
from tested_transformer.data.number_words import LARGEST, german_words
from tested_transformer.experiments.ch10_ablation import ABLATIONS, trainer_without
from tested_transformer.training.trainer import Trainer, evaluate

NAME = "ablation"
STEPS, UNSEEN, ALONE = 600, 1000, 200
WHAT = (
    f"the book's model trained for {STEPS} steps without one part: loss (mean of the last 20 steps), "
    f"loss and share of likeliest words on {UNSEEN:,} unseen numbers when each word is told the right "
    "ones before it, and the share of them translated word for word"
)
LONGEST = 20  # the longest English number has 12 words, the end included


def rounded(number: float) -> float | None:
    """Four significant digits; None for what is no number, which JSON does not have."""
    return float(f"{number:.4g}") if math.isfinite(number) else None


def ceiling() -> dict:
    """A model that reads a bag of words can get one number of each bag right."""
    bags = {tuple(sorted(german_words(number))) for number in range(1, LARGEST + 1)}
    return {"segmentation": "fine", "bags": len(bags), "ceiling": round(len(bags) / LARGEST, 4)}


def row(without: str, seed: int) -> dict:
    """Train one model and ask it."""
    start, split = time.process_time(), single_numbers()
    unseen = split.test[:UNSEEN]
    trainer = trainer_without(without, steps=STEPS, seed=seed, split=split)
    losses = trainer.run(progress=False).losses
    spent = time.process_time() - start
    words = trainer.source, trainer.target
    told = evaluate(trainer.model, make_batches(unseen, *words))
    wrong = find_mistakes(trainer.model, unseen, *words, max_new=LONGEST)
    examples = [(wrong[i].pair, wrong[i].translation) for i in spread(len(wrong))]
    found = {
        "without": without,
        "seed": seed,
        "cpu_seconds": round(spent, 1),
        "loss": rounded(sum(losses[-20:]) / 20),
        "held_out_loss": rounded(told.loss),
        "accuracy": round(told.accuracy, 4),
        "right": round(1 - len(wrong) / UNSEEN, 4),
        "losses": [rounded(loss) for loss in losses[19::20]],
        "examples": [
            {"source": " ".join(p.source), "target": " ".join(p.target), "said": " ".join(said)}
            for p, said in examples
        ],
    }
    if without == "positions in the encoder":
        found |= ceiling()
    if without == "padding mask":
        found |= company(trainer, unseen[:ALONE])
    return found


def company(trainer: Trainer, pairs: list[Pair]) -> dict:
    """The share that is right alone, without padding, and in one batch with longer sentences."""
    shares = {}
    for name, size in (("right_alone", 1), ("right_together", len(pairs))):
        words = trainer.source, trainer.target
        wrong = find_mistakes(trainer.model, pairs, *words, batch_size=size, max_new=LONGEST)
        shares[name] = round(1 - len(wrong) / len(pairs), 4)
    return shares


def spread(count: int) -> list[int]:
    """Three places among so many, from the short sentences, the middle and the long ones."""
    return sorted({round(count * share) for share in (0.1, 0.5, 0.9)} & set(range(count)))


def main() -> None:
    """Measure what is missing, row by row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", choices=ABLATIONS, nargs="+", default=list(ABLATIONS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    wanted = [{"without": w, "seed": n} for n in range(options.seeds) for w in options.only]
    shown = ("without", "seed", "cpu_seconds", "loss", "held_out_loss", "accuracy", "right")
    measure_missing(NAME, WHAT, wanted, row, shown)


if __name__ == "__main__":
    main()
