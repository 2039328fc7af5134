"""Train the small model of "The first ten minutes", and write it where the package looks.

Half a minute of one processor core. Fails, and writes nothing, unless every number from 1 to 999
comes out right, the 300 that it never saw among them.

Usage: python tools/train_first_model.py
"""

import sys

import torch

from tested_transformer.analysis.translation import find_mistakes
from tested_transformer.experiments.ch10_number_models import FIRST, first_numbers, first_trainer
from tested_transformer.training.checkpoint import save_trained


def main() -> int:
    """Train, test, write; 1 if a number is wrong."""
    torch.set_num_threads(1)  # sums in one order
    trainer, split = first_trainer(), first_numbers()
    trainer.run()
    for name, pairs in (("shown", split.train), ("never shown", split.test)):
        mistakes = find_mistakes(trainer.model, pairs, trainer.source, trainer.target)
        print(f"{len(pairs) - len(mistakes)} of {len(pairs)} numbers right that were {name}")
        if mistakes:
            print("not written: all are wanted", file=sys.stderr)
            return 1
    save_trained(FIRST, trainer.model, trainer.source, trainer.target)
    size = (FIRST / "model.safetensors").stat().st_size
    print(f"written to {FIRST.relative_to(FIRST.parents[4])}, {size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
