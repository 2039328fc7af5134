"""Train the language model of spoken numbers that comes with the package, and write it.

About a minute of one processor core. Fails, and writes nothing, if a probability is more than 0.03
from the truth after one of the beginnings that chapter 11 uses.

Usage: python tools/train_spoken_numbers.py
"""

import sys

import torch
from safetensors.torch import save_model
from torch.nn.functional import cross_entropy

from tested_transformer.data import BOS
from tested_transformer.experiments.ch11_spoken_numbers import (
    SHIPPED,
    new_spoken_model,
    sample_numbers,
    spoken_batch,
    spoken_vocabulary,
    true_chances,
)
from tested_transformer.training.schedules import one_cycle_rate

STEPS, BATCH, MOST = 1000, 128, 0.03
BEGINNINGS = (
    "",
    "one",
    "twenty",
    "three hundred",
    "one hundred and",
    "five thousand",
    "ninety one",
)


def main() -> int:
    """Train, compare, write; 1 if the model is not good enough."""
    torch.set_num_threads(1)  # sums in one order
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    words, model = spoken_vocabulary(), new_spoken_model()
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(1, STEPS + 1):
        read, said = spoken_batch(sample_numbers(BATCH, generator), words)
        loss = cross_entropy(model(read).flatten(0, 1), said.flatten(), ignore_index=0)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = one_cycle_rate(step, total=STEPS, peak=6e-3, warmup=0.1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)
    worst = 0.0
    for beginning in map(str.split, BEGINNINGS):
        with torch.no_grad():
            logits = model.eval()(torch.tensor([[BOS, *words.encode(beginning)]]))[0, -1]
        said = logits.softmax(-1)
        true = true_chances(beginning)
        apart = max(abs(said[words.encode([word])[0]].item() - p) for word, p in true.items())
        print(f"after {' '.join(beginning) or 'nothing'}: off by at most {apart:.4f}")
        worst = max(worst, apart)
    if worst > MOST:
        print(f"not written: at most {MOST} is wanted", file=sys.stderr)
        return 1
    SHIPPED.parent.mkdir(parents=True, exist_ok=True)
    save_model(model, SHIPPED)
    print(f"written, {SHIPPED.stat().st_size / 1e3:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
