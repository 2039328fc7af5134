"""Train the Vision Transformer for digits that comes with the package, and write it as transformers does.

About half a minute of one processor core. It is the model of chapter 14, with seed 0. Fails, and
writes nothing, if fewer than 98 % of the test images are right.

Usage: python tools/train_digits.py
"""

import sys

import torch

from tested_transformer.experiments.ch14_digits import SHIPPED, accuracy, digits, trained_vit
from tested_transformer.models.loading import save_pretrained

LEAST = 0.98


def main() -> int:
    """Train, test, write; 1 if the model is not good enough."""
    torch.set_num_threads(1)  # sums in one order
    train, test = digits(0)
    model = trained_vit(train, 0)
    right = accuracy(model, test)
    print(f"{right:.2%} of the test images are right")
    if right < LEAST:
        print(f"not written: at least {LEAST:.0%} are wanted", file=sys.stderr)
        return 1
    save_pretrained(model, SHIPPED)
    print(f"written, {sum(each.stat().st_size for each in SHIPPED.iterdir()) / 1e3:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
