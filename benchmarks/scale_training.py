"""What the scale does to training: one attention layer learns to look up a word, with and without it.

Every row is one training run in float64: head dimension, scale, learning rate, seed. "folded": no scale,
but an initial W_Q that is sqrt(d) times smaller, so that the scores of the untrained layer are those of the
scaled one. "small steps": no scale, large initial scores, but learning rates of W_Q and W_K that are sqrt(d)
times smaller; "all small steps": the learning rate of the embeddings, too. "nudged": no scale, and initial embeddings that are larger by a factor of 1 + 1e-14; "nudged,
scaled" is its control.
"growth" is the norm of W_Q after training over the norm before, "score_std" the standard deviation of all
40 x 40 scores before and after. Chapter 3 plots the rows and runs one of them again. About four minutes
of one processor.

Usage: OMP_NUM_THREADS=1 python benchmarks/scale_training.py
"""

import itertools

import torch
from record import measure_missing

from tested_transformer import fold_scale
from tested_transformer.experiments.ch03_recall import Recall, train_recall

NAME = "scale_training"
STEPS, EVERY = 1000, 50
WHAT = (
    "accuracy on 1,000 lists, and median top attention weight, of a layer that learns to look up one of "
    f"ten words, every {EVERY} steps of Adam from 0 to {STEPS}, batches of 64 new lists, float64"
)


def score_std(model: Recall) -> float:
    """The standard deviation of the scores of every word with every word, as the softmax gets them."""
    with torch.no_grad():
        query, key = model.query(model.words.weight), model.key(model.words.weight)
        return (query @ key.mT * model.scale).std().item()


def measure(variant: str, d_head: int, method: str, lr: float, seed: int) -> dict:
    """One training run, from a seed that sets the weights and the lists."""
    torch.manual_seed(seed)
    model = Recall(d_head, scale=d_head**-0.5 if "scaled" in method.split(", ") else 1.0).double()
    if method == "folded":
        with torch.no_grad():
            model.query.weight.copy_(fold_scale(model.query.weight, d_head))
    if "nudged" in method:
        with torch.no_grad():
            model.words.weight.mul_(1 + 1e-14)
    w_query, scores_before = model.query.weight.norm().item(), score_std(model)
    less = lr * d_head**-0.5
    small = {"small steps": {"projection_lr": less}}
    small["all small steps"] = {"projection_lr": less, "embedding_lr": less}
    history = train_recall(model, seed, STEPS, lr=lr, every=EVERY, **small.get(method, {}))
    curves = {name: [round(value, 3) for value in curve] for name, curve in history.items()}
    run = {"variant": variant, "d_head": d_head, "method": method, "lr": lr, "seed": seed}
    run["growth"] = round(model.query.weight.norm().item() / w_query, 2)
    run["score_std"] = [round(scores_before, 1), round(score_std(model), 1)]
    return {**run, **curves, "end": curves["accuracy"][-1]}


def main() -> None:
    """Measure the runs that are missing."""
    grid = [
        *itertools.product((512,), ("scaled", "unscaled"), (0.01, 0.001), range(3)),
        *itertools.product((16,), ("scaled", "unscaled"), (0.01, 0.001), range(3)),
        *itertools.product((512,), ("small steps", "all small steps"), (0.01, 0.001), range(3)),
        *itertools.product((512,), ("scaled",), (0.1,), range(3)),
        *itertools.product((512,), ("unscaled",), (0.003,), range(3)),
        *itertools.product((512,), ("folded",), (0.01, 0.001), range(3)),
        *itertools.product((512,), ("nudged", "nudged, scaled"), (0.01,), range(3)),
        *itertools.product((64,), ("scaled", "unscaled"), (0.01, 0.001), range(3)),
    ]
    wanted = (
        {"variant": f"{d}, {method}, {lr}", "d_head": d, "method": method, "lr": lr, "seed": seed}
        for d, method, lr, seed in grid
    )
    measure_missing(NAME, WHAT, wanted, measure, ["variant", "seed", "end", "growth", "score_std"])


if __name__ == "__main__":
    main()
