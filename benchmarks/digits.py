"""A Vision Transformer, a support vector machine and logistic regression read scikit-learn's digits.

First the settings are chosen on validation images: 252 of the 1,257 training images, the rest
to train on ("validation"). Then each model with its best settings is trained on all training images and asked
for the 540 test images ("test"). Three seeds each; a seed draws the split, the weights and the batches.
"view" says what a model is trained on: the images as they are, or images turned, scaled and shifted a little;
the baselines then get each image as it is and nine times moved. A deeper page of chapter 14 prints the rows
and runs the baselines of one seed again. About fifteen minutes of one processor.

Usage: OMP_NUM_THREADS=1 python benchmarks/digits.py
"""

import time
from collections import defaultdict
from itertools import product
from statistics import mean

import torch
from record import measure_missing, read_rows

from tested_transformer.experiments.ch14_digits import (
    accuracy,
    baseline,
    digits,
    many_moved,
    moved,
    trained_vit,
    validation_split,
)

NAME = "digits"
WHAT = (
    "accuracy on scikit-learn's digits: a Vision Transformer after 100 epochs, a support vector machine "
    "with a radial kernel, logistic regression; settings chosen on validation images, then test images"
)
SIZES = {
    "2 layers, D = 32": {"num_layers": 2, "d_model": 32, "d_ff": 64},
    "3 layers, D = 48": {},
}
STRENGTHS = {"SVC": (1, 3, 10, 30), "logistic regression": (0.1, 1, 10)}
VIEWS = {"as they are": None, "moved": moved}


def measure(task: str, model: str, view: str, setting: str, lr: float, seed: int) -> dict:
    """One training, on all training images or on those that are not for validation."""
    train, asked = digits(seed)
    if task == "validation":
        train, asked = validation_split(train, seed)
    begun = time.process_time()
    if model == "ViT":
        found = trained_vit(train, seed, lr=lr, view=VIEWS[view], **SIZES[setting])
        right = accuracy(found, asked)
    else:
        torch.manual_seed(seed)
        images = train if view == "as they are" else many_moved(train, 9)
        right = baseline(model, float(setting.removeprefix("C = ")), images, asked)
    return {
        "task": task, "model": model, "variant": f"{view}, {setting}", "view": view,
        "setting": setting, "lr": lr, "seed": seed, "right": round(right, 4),
        "seconds": round(time.process_time() - begun, 1),
    }  # fmt: skip


def settings() -> list[tuple[str, str, str, float]]:
    """Model, view, setting and learning rate of everything that is tried."""
    tried = [
        (model, view, f"C = {strength}", 0.0)
        for model, strengths in STRENGTHS.items()
        for view, strength in product(VIEWS, strengths)
    ]
    tried += [("ViT", "moved", size, lr) for size in SIZES for lr in (0.002, 0.006)]
    return tried + [("ViT", "as they are", "3 layers, D = 48", lr) for lr in (0.002, 0.006)]


def runs(task: str, tried: list) -> list[dict]:
    """Each setting with three seeds."""
    names = ("task", "model", "view", "setting", "lr", "seed")
    return [
        dict(zip(names, (task, *each, seed), strict=True)) for each in tried for seed in range(3)
    ]


def chosen() -> list[tuple[str, str, str, float]]:
    """For each model what has the best mean on validation images; the first of equals."""
    found = defaultdict(list)
    for row in read_rows(NAME):
        if row["task"] == "validation":
            found[row["model"], row["view"], row["setting"], row["lr"]].append(row["right"])
    means = {each: round(mean(found[each]), 6) for each in settings()}
    models = dict.fromkeys(each[0] for each in means)
    return [max((e for e in means if e[0] == model), key=means.get) for model in models]


def main() -> None:
    """Measure the runs that are missing."""
    shown = ["task", "model", "variant", "lr", "seed", "right", "seconds"]
    measure_missing(NAME, WHAT, runs("validation", settings()), measure, shown)
    measure_missing(NAME, WHAT, runs("test", chosen()), measure, shown)


if __name__ == "__main__":
    main()
