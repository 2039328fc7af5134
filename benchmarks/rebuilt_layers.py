"""One budget, one task: what do CRATE, composed heads, differential attention, gates and hyper-connections learn?

Every row is one training run of chapter 13's Llama with four key and value heads, of which a part is rebuilt: the whole
layer (CRATE), the attention (DCMHA, differential, gated) or the residual connections (four streams). "right" is the
share of whole numbers that are right, on 500 sequences that the training does not hold; "bytes" are those of the
layers' weights, without embeddings; "seconds" are of the processor, for the training. Steps and learning rate of
`rebuilt_blocks.py`. CRATE is there three times: as it is, with a residual connection around its ISTA step, and with that and
four times the layers, so about as many bytes as Llama. About eight minutes of one processor.

Usage: OMP_NUM_THREADS=1 python benchmarks/rebuilt_layers.py
"""

import time
from functools import cache as remember

import torch
from record import measure_missing

from tested_transformer.experiments.ch13_counting import measure_counting, unseen_sequences
from tested_transformer.experiments.ch21_layers import REBUILT, layer_bytes, train_rebuilt

NAME = "rebuilt_layers"
STEPS, RATE = 200, 0.01
WHAT = (
    "loss per token and share of whole numbers right, on 500 sequences of 48 tokens that the training does not hold, "
    "bytes of the layers' weights and seconds of processor time for the training, of a Llama with 2 layers, 4 heads and "
    f"D = 64 that counts on in English number words, with its layers rebuilt, after {STEPS} steps of Adam at a learning "
    f"rate of {RATE}"
)


@remember
def test_sequences(seed: int) -> torch.Tensor:
    """500 sequences that the training with this seed does not hold."""
    return unseen_sequences(500, seed, STEPS)


def measure(variant: str, seed: int) -> dict:
    """One training run."""
    began = time.process_time()
    model = train_rebuilt(variant, seed, STEPS, lr=RATE)
    seconds = time.process_time() - began
    loss, right = measure_counting(model.eval(), ids=test_sequences(seed))
    return {
        "variant": variant, "seed": seed, "bytes": layer_bytes(model), "seconds": round(seconds, 1),
        "loss": round(loss, 4), "right": round(right, 4),
    }  # fmt: skip


def main() -> None:
    """Measure the runs that are missing."""
    wanted = ({"variant": variant, "seed": seed} for seed in range(3) for variant in REBUILT)
    measure_missing(
        NAME, WHAT, wanted, measure, ["variant", "seed", "bytes", "seconds", "loss", "right"]
    )


if __name__ == "__main__":
    main()
