"""Fewer KV heads, or a latent: does a small model that counts notice that its cache is small?

Every row is one training run of chapter 13's Llama, as long as there, at the learning rate that was best there.
Only the attention differs: how many KV heads it has, or, in latent attention
(MLA), how many features of a latent and of a rotary key it caches. "bytes" are those of the cache per token, both
layers, in float32, as measured. "right" is the share of whole numbers that are right, on 500 sequences that the
training does not hold. About seven minutes of one processor.

Usage: OMP_NUM_THREADS=1 python benchmarks/small_caches.py
"""

from functools import cache as remember

import torch
from record import measure_missing

from tested_transformer.experiments.ch13_counting import (
    measure_counting,
    train_counting,
    unseen_sequences,
)
from tested_transformer.experiments.ch16_small_caches import (
    CACHES,
    cache_bytes_measured,
    small_cache_model,
)

NAME = "small_caches"
STEPS, RATE = 400, 0.01
WHAT = (
    "bytes of the cache per token, loss per token and share of whole numbers right, on 500 sequences of 48 tokens "
    "that the training does not hold, of a Llama with 2 layers, 4 heads and D = 64 that counts on in English number "
    f"words, after {STEPS} steps of Adam at a learning rate of {RATE}"
)


@remember
def test_sequences(seed: int) -> torch.Tensor:
    """500 sequences that the training with this seed does not hold."""
    return unseen_sequences(500, seed, STEPS)


def measure(variant: str, seed: int) -> dict:
    """One training run, from a seed that sets the weights and the sequences."""
    torch.manual_seed(seed)
    model = small_cache_model(variant)
    train_counting(model, seed, STEPS, lr=RATE)
    loss, right = measure_counting(model.eval(), ids=test_sequences(seed))
    return {
        "variant": variant, "seed": seed, "bytes": cache_bytes_measured(model),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "loss": round(loss, 4), "right": round(right, 4),
    }  # fmt: skip


def main() -> None:
    """Measure the runs that are missing."""
    wanted = ({"variant": variant, "seed": seed} for seed in range(3) for variant in CACHES)
    measure_missing(
        NAME, WHAT, wanted, measure, ["variant", "seed", "bytes", "parameters", "loss", "right"]
    )


if __name__ == "__main__":
    main()
