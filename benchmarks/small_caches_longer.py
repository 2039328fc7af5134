"""Is a latent with a rotary key of 8 too small, or only slower to learn?

Two changes to the runs of small_caches.py: 1,200 training steps in place of 400, and in latent attention a rotary
base of 100 in place of 10,000, which turns the slow pairs of features faster. Everything else is as there.
"steps" and "base" are those of the run. About five minutes of one processor.

Usage: OMP_NUM_THREADS=1 python benchmarks/small_caches_longer.py
"""

import torch
from record import measure_missing

from tested_transformer.experiments.ch13_counting import (
    measure_counting,
    train_counting,
    unseen_sequences,
)
from tested_transformer.experiments.ch16_small_caches import small_cache_model
from tested_transformer.positions.rotary import RotaryPositions

NAME = "small_caches_longer"
RATE, BASE = 0.01, 10_000
WHAT = (
    "share of whole numbers right, on 500 sequences of 48 tokens that the training does not hold, of the models of "
    f"small_caches.py with more steps of Adam at a learning rate of {RATE}, or with another rotary base"
)
RUNS = [("MLA, 24 + 8", 100, 400), ("MLA, 24 + 8", BASE, 1200)]


def measure(variant: str, base: int, steps: int, seed: int) -> dict:
    """One training run, from a seed that sets the weights and the sequences."""
    torch.manual_seed(seed)
    model = small_cache_model(variant)
    if base != BASE:
        for layer in model.layers:
            rotary = RotaryPositions(layer.attention.d_rotary, base=float(base))
            layer.attention.positions = rotary
    train_counting(model, seed, steps, lr=RATE)
    loss, right = measure_counting(model.eval(), ids=unseen_sequences(500, seed, steps))
    return {
        "variant": variant, "base": base, "steps": steps, "seed": seed,
        "loss": round(loss, 4), "right": round(right, 4),
    }  # fmt: skip


def main() -> None:
    """Measure the runs that are missing."""
    wanted = (
        {"variant": variant, "base": base, "steps": steps, "seed": seed}
        for variant, base, steps in RUNS
        for seed in range(3)
    )
    measure_missing(NAME, WHAT, wanted, measure, ["variant", "base", "steps", "seed", "right"])


if __name__ == "__main__":
    main()
