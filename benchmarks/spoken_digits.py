"""Digits of a synthesized voice: what a small Whisper of chapter 14 writes down, and what two weaker ones do.

Every row is one training run on 4,000 recordings of 100 speakers; a seed sets the speakers, the weights and the
batches. "Whisper" is the model of the page; "frames shuffled" is the same with the frames of every recording in
random order, in training and test; "no positions" is the same without the encoder's sinusoids. "mean log-mel,
linear" is logistic regression on the mean of each mel band, trained on as many recordings, of one digit each.
"right" is the share of recordings without a mistake, of 800 by 40 other speakers; "by_count" splits it by the
number of digits, one to four. The first Whisper is stored in the package. About twenty minutes of one processor.

Usage: OMP_NUM_THREADS=1 python benchmarks/spoken_digits.py
"""

from functools import cache

import torch
from record import measure_missing

from tested_transformer.experiments.ch14_spoken import (
    IGNORED,
    SPEAKERS,
    STEPS,
    Recordings,
    linear_accuracy,
    new_listener,
    recordings,
    right,
    save_listener,
    shuffled,
    train_listener,
    written,
)

NAME, TEST_SEED, TEST_SPEAKERS, TEST_EACH = "spoken_digits", 1000, 40, 20
WHAT = (
    "share of recordings written down without a mistake, of 800 by 40 held-out synthetic speakers, by a Whisper "
    f"of 79 thousand parameters after {STEPS} steps of Adam, 32 recordings each, of {SPEAKERS} other speakers"
)


@cache
def data(seed: int, most: int = 4) -> tuple[Recordings, Recordings]:
    """What one seed is trained on, and what all are tested on."""
    return recordings(seed, most=most), recordings(TEST_SEED, TEST_SPEAKERS, TEST_EACH, most)


def measure(variant: str, seed: int) -> dict:
    """One training run."""
    if variant == "mean log-mel, linear":
        torch.manual_seed(seed)
        return {"variant": variant, "seed": seed, "single": linear_accuracy(*data(seed, 1))}
    (train, test), shuffle = data(seed), variant == "frames shuffled"
    model = new_listener(seed, positions=variant != "no positions")
    curve = train_listener(model, train, seed, shuffle=shuffle)
    features = test.features
    if shuffle:
        features = shuffled(features, torch.Generator().manual_seed(TEST_SEED))
    if (variant, seed) == ("Whisper", 0):
        save_listener(model)
    good, counts = right(written(model, features), test.digits), (test.digits != IGNORED).sum(1)
    return {
        "variant": variant, "seed": seed, "right": float(good.double().mean()),
        "by_count": [float(good[counts == n].double().mean()) for n in (1, 2, 3, 4)],
        "train": [round(sum(curve[i : i + 50]) / 50, 3) for i in range(0, STEPS, 50)],
    }  # fmt: skip


def main() -> None:
    """Measure the runs that are missing."""
    wanted = [("Whisper", 0), ("frames shuffled", 0), ("no positions", 0)]
    wanted += [(variant, seed) for seed in (1, 2) for variant, _ in wanted]
    wanted += [("mean log-mel, linear", seed) for seed in range(3)]
    runs = ({"variant": variant, "seed": seed} for variant, seed in wanted)
    measure_missing(NAME, WHAT, runs, measure, ["variant", "seed", "right", "single", "by_count"])


if __name__ == "__main__":
    main()
