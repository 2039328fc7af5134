"""Train the number-word model that comes with the package, and write it where the package looks.

About two minutes of one processor core. Fails, and writes nothing, if fewer than 99.5 % come out right
of the 2,000 numbers that it never saw, or of the 300 below a thousand.

Usage: python tools/train_number_words.py
"""

import sys

import torch

from tested_transformer.analysis.translation import find_mistakes
from tested_transformer.experiments.ch10_number_models import (
    SHIPPED,
    book_numbers,
    first_numbers,
    number_trainer,
)
from tested_transformer.training.checkpoint import save_trained

LEAST = 0.995


def main() -> int:
    """Train, test, write; 1 if the model is not good enough."""
    torch.set_num_threads(1)  # sums in one order
    trainer = number_trainer()
    trainer.run()
    unseen = {"below a million": book_numbers().test, "below a thousand": first_numbers().test}
    for name, pairs in unseen.items():
        mistakes = find_mistakes(trainer.model, pairs, trainer.source, trainer.target)
        share = 1 - len(mistakes) / len(pairs)
        print(f"{share:.2%} of {len(pairs)} unseen numbers {name} right")
        if share < LEAST:
            print(f"not written: at least {LEAST:.1%} is wanted", file=sys.stderr)
            return 1
    save_trained(SHIPPED, trainer.model, trainer.source, trainer.target)
    size = (SHIPPED / "model.safetensors").stat().st_size
    print(f"written to {SHIPPED.relative_to(SHIPPED.parents[4])}, {size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
