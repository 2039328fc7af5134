"""What sharing the parameters of all layers costs a small BERT, and what it saves.

Every row is one pretraining on 799 number words, 1,000 steps of 64 sentences: four layers, four times the
same layer, or one layer. "masked": the fraction of tokens of the 200 held-out numbers that it predicts
when they are masked one at a time; "loss": of the tokens that mask_tokens chooses there; "parameters";
"seconds": processor time of the 1,000 steps. Chapter 12 shows the rows. About three minutes of one
processor.

Usage: OMP_NUM_THREADS=1 python benchmarks/bert_sharing.py
"""

import time
from functools import partial

import torch
from record import measure_missing

from tested_transformer.experiments import ch12_masked as bert

NAME = "bert_sharing"
WHAT = "parameters, time and held-out accuracy of a small BERT whose layers share their parameters or not"
BUILD = {
    "four layers": partial(bert.masked_lm, num_layers=4),
    "four, shared": bert.shared_masked_lm,
    "one layer": partial(bert.masked_lm, num_layers=1),
}


def measure(variant: str, seed: int) -> dict:
    """Pretrain one model and look at the held-out numbers."""
    known, held_out = bert.split_numbers()
    began = time.process_time()
    model = bert.pretrain(known, seed, steps=1000, build=BUILD[variant])
    seconds = time.process_time() - began
    rows = bert.encode([bert.words_of(number) for number in held_out])
    with torch.no_grad():
        losses = [
            bert.masked_loss(model, rows, torch.Generator().manual_seed(s)) for s in range(10)
        ]
    return {
        "variant": variant, "seed": seed, "seconds": round(seconds, 1),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "masked": round(bert.restored(model, held_out, "masked"), 4),
        "loss": round(torch.stack(losses).mean().item(), 3),
    }  # fmt: skip


def main() -> None:
    """Measure the rows that are missing."""
    wanted = ({"variant": v, "seed": seed} for seed in range(3) for v in BUILD)
    shown = ["variant", "seed", "parameters", "seconds", "masked", "loss"]
    measure_missing(NAME, WHAT, wanted, measure, shown)


if __name__ == "__main__":
    main()
