"""One budget, one task: which rebuilt feed-forward block learns to count?

Every row is one training run of chapter 13's Llama. Only the feed-forward network differs: SwiGLU, splines (KAN) with
as many parameters, SwiGLU with ternary weights (BitNet b1.58), or eight experts of which each token uses two, so that a
token meets as many weights as in SwiGLU. "right" is the share of whole numbers that are right, on 500 sequences that
the training does not hold; "bytes" are those of all feed-forward weights, two bits for a ternary one, the router
included; "seconds" are of the processor, for the training. "loads" has for each layer the part of all choices that each
expert gets on those sequences, the largest first. Half of the steps and the learning rate of chapter 16's small caches.
About six minutes of one processor.

Usage: OMP_NUM_THREADS=1 python benchmarks/rebuilt_blocks.py
"""

import time
from functools import cache as remember

import torch
from record import measure_missing

from tested_transformer.experiments.ch13_counting import measure_counting, unseen_sequences
from tested_transformer.experiments.ch21_blocks import (
    BLOCKS,
    block_bytes,
    block_model,
    loads,
    train_block,
)

NAME = "rebuilt_blocks"
STEPS, RATE = 200, 0.01
WHAT = (
    "loss per token and share of whole numbers right, on 500 sequences of 48 tokens that the training does not hold, "
    "bytes of the feed-forward weights, seconds of processor time for the training and the experts' parts of all "
    "choices, of a Llama with 2 layers, 4 heads and D = 64 that counts on in English number words, with its "
    f"feed-forward network rebuilt, after {STEPS} steps of Adam at a learning rate of {RATE}"
)


@remember
def test_sequences(seed: int) -> torch.Tensor:
    """500 sequences that the training with this seed does not hold."""
    return unseen_sequences(500, seed, STEPS)


def measure(variant: str, seed: int) -> dict:
    """One training run, from a seed that sets the weights and the sequences."""
    torch.manual_seed(seed)
    model = block_model(variant)
    began = time.process_time()
    train_block(model, variant, seed, STEPS, lr=RATE)
    seconds = time.process_time() - began
    loss, right = measure_counting(model.eval(), ids=test_sequences(seed))
    return {
        "variant": variant, "seed": seed, "bytes": block_bytes(model),
        "parameters": sum(weight.numel() for weight in model.layers.parameters()),
        "seconds": round(seconds, 1), "loss": round(loss, 4), "right": round(right, 4),
        "loads": [[round(part, 3) for part in layer] for layer in loads(model, test_sequences(seed))],
    }  # fmt: skip


def main() -> None:
    """Measure the runs that are missing."""
    wanted = ({"variant": variant, "seed": seed} for seed in range(3) for variant in BLOCKS)
    columns = ["variant", "seed", "bytes", "parameters", "seconds", "loss", "right"]
    measure_missing(NAME, WHAT, wanted, measure, columns)


if __name__ == "__main__":
    main()
