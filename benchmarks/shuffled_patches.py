"""What a Vision Transformer knows about where: its digits with the patches shuffled.

A model is trained for 15 epochs on scikit-learn's digits, without moving them, with learned positions or
without any, on images whose 16 patches are in order, in one wrong order that is the same for all images ("fixed"),
in another order for each image of each batch ("shuffled"), or cut out of memory by a reshape alone ("reshaped").
It is then asked for the 540 test images in each of these ways. Three seeds; a seed draws the split of the
images, the weights, the batches and the orders. Chapter 14's page on shuffled patches prints the rows. About
two minutes of one processor.

Usage: OMP_NUM_THREADS=1 python benchmarks/shuffled_patches.py
"""

import torch
from record import measure_missing

from tested_transformer.experiments.ch14_digits import (
    accuracy,
    digits,
    fixed_order,
    reshaped,
    shuffled,
    trained_vit,
)

NAME = "shuffled_patches"
EPOCHS = 15
WHAT = (
    "accuracy on test images of scikit-learn's digits, patches in order and shuffled, of a Vision "
    f"Transformer with and without positions after {EPOCHS} epochs on patches in order, in one wrong order, "
    "and shuffled"
)
VIEWS = {"in order": None, "fixed": fixed_order, "shuffled": shuffled, "reshaped": reshaped}
VARIANTS = [(view, True) for view in VIEWS] + [("in order", False)]


def measure(variant: str, view: str, positions: bool, seed: int) -> dict:
    """One training, and three tests."""
    train, test = digits(seed)
    model = trained_vit(train, seed, epochs=EPOCHS, view=VIEWS[view], positions=positions)
    torch.manual_seed(seed)
    right = {
        name: accuracy(model, test if change is None else test._replace(images=change(test.images)))
        for name, change in VIEWS.items()
    }
    return {
        "variant": variant, "view": view, "positions": positions, "seed": seed,
        **{name: round(share, 4) for name, share in right.items()},
    }  # fmt: skip


def main() -> None:
    """Measure the runs that are missing."""
    wanted = (
        {
            "variant": f"{'' if positions else 'no '}positions, {view}", "view": view,
            "positions": positions, "seed": seed,
        }
        for view, positions in VARIANTS
        for seed in range(3)
    )  # fmt: skip
    measure_missing(NAME, WHAT, wanted, measure, ["variant", "seed", *VIEWS])


if __name__ == "__main__":
    main()
