"""Does minimal.py learn German number words? Every held-out number translated, three seeds.

One model for each seed: d_model 128, 4 heads, 2 encoder and 2 decoder layers, no dropout; 20,000
numbers below a million, 2,000 others held out. 800 steps of AdamW with PyTorch's one-cycle schedule.
The data and batches are the package's, everything else is the file's own. One thread.

Usage: OMP_NUM_THREADS=1 python benchmarks/minimal_training.py [--seeds 3]
"""

import argparse
import itertools
import time
from collections.abc import Iterator

import torch
from record import measure_missing
from torch import Tensor
from torch.nn import functional

from tested_transformer import minimal
from tested_transformer.data import Batch, Split, Vocabulary, make_batches, single_numbers

NAME = "minimal_training"
STEPS, BATCH_SIZE, PEAK, WARMUP, LONGEST = 800, 64, 2e-3, 0.15, 20
WHAT = (
    f"minimal.py trained for {STEPS} steps on 20,000 German number words: share of 2,000 held-out "
    "numbers translated word for word by greedy decoding, mean loss of the last 20 steps, processor "
    "seconds of training"
)


def vocabularies(split: Split) -> tuple[Vocabulary, Vocabulary]:
    """German and English."""
    return (
        Vocabulary.of(pair.source for pair in split.train),
        Vocabulary.of(pair.target for pair in split.train),
    )


def training_batches(split: Split, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Source and target, from BOS to EOS, each epoch in an order of its own."""
    for epoch in itertools.count():
        order = 1_000_003 * seed + epoch
        for batch in make_batches(
            split.train, *vocabularies(split), batch_size=BATCH_SIZE, seed=order
        ):
            yield batch.source, torch.cat([batch.target[:, :1], batch.expected], dim=1)


def count_right(model: minimal.Transformer, batch: Batch) -> int:
    """How many sources of a batch are translated word for word."""
    tokens = minimal.generate(model, batch.source, LONGEST)
    tokens = functional.pad(tokens, (0, LONGEST - tokens.shape[1]), value=minimal.PAD)
    expected = functional.pad(batch.expected, (0, LONGEST - batch.expected.shape[1]))
    return int((tokens == expected).all(1).sum())


def measure(seed: int) -> dict:
    """Train one model and translate every held-out number."""
    split = single_numbers()
    german, english = vocabularies(split)
    torch.manual_seed(seed)
    model = minimal.Transformer(
        len(german), len(english), d_model=128, num_heads=4, num_layers=2, d_ff=512, dropout=0.0
    )
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK, total_steps=STEPS, pct_start=WARMUP
    )
    losses, seconds = [], 0.0
    for source, target in itertools.islice(training_batches(split, seed), STEPS):
        start = time.process_time()
        losses.append(minimal.training_step(model, optimizer, source, target))
        schedule.step()
        seconds += time.process_time() - start
    model.eval()
    held_out = make_batches(split.test, german, english, batch_size=500)
    right = sum(count_right(model, batch) for batch in held_out)
    return {
        "seed": seed, "steps": STEPS, "exact_match": right / len(split.test),
        "held_out": len(split.test), "loss": round(sum(losses[-20:]) / 20, 5),
        "cpu_seconds": round(seconds, 1),
    }  # fmt: skip


def main() -> None:
    """Train once for each seed and store it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    wanted = ({"seed": seed} for seed in range(seeds))
    measure_missing(NAME, WHAT, wanted, measure, ("seed", "exact_match", "loss", "cpu_seconds"))


if __name__ == "__main__":
    main()
