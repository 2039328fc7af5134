"""How long until a model translates 99.5 % of unseen numbers: ours and nn.Transformer in turns.

Both start from the same weights and see the same batches by the same recipe; theirs is torch's two
stacks between our embeddings and our output layer, with the masks that its documentation asks for.
Every 50 steps, from step 200 on, each translates 1,000 numbers that it never saw; that time is not
counted, nor the making of batches. One thread. About five minutes of one processor core a seed.

Usage: OMP_NUM_THREADS=1 python benchmarks/training.py [--seeds 2]
"""

import argparse
import copy
import statistics
import time

import torch
from record import read_rows, write_rows
from torch import nn

from tested_transformer.analysis.translation import find_mistakes
from tested_transformer.data import Split, single_numbers
from tested_transformer.experiments.ch10_number_models import number_trainer
from tested_transformer.layers.blocks import position_ids
from tested_transformer.models.convert_torch import stack_pairs, transformer_to_torch
from tested_transformer.models.transformer import Transformer
from tested_transformer.training.trainer import Recipe, Trainer

NAME = "training"
GOAL, UNSEEN, EVERY, FIRST, TURN, LONGEST = 0.995, 1000, 50, 200, 25, 20
WHAT = (
    f"processor seconds of training until {GOAL:.1%} of {UNSEEN:,} unseen numbers are translated word "
    f"for word (asked every {EVERY} steps from {FIRST} on), and of the median step; ratio: "
    "nn.Transformer's over ours, median over the seeds"
)


class Peer(nn.Module):
    """nn.Transformer with our embeddings and output layer, which it lacks."""

    def __init__(self, ours: Transformer) -> None:
        super().__init__()
        self.config, self.stacks = ours.config, transformer_to_torch(ours)
        parts = (ours.source_embedding, ours.target_embedding, ours.output)
        self.source_embedding, self.target_embedding, self.output = copy.deepcopy(parts)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Logits; padding and the future are hidden, where True hides."""
        padding, length = source == 0, target.shape[1]
        x = self.stacks(
            self.source_embedding(source, position_ids(source != 0), source.shape[1]),
            self.target_embedding(target, position_ids(target != 0), length),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(length, dtype=torch.bool),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_key_padding_mask=target == 0,
            tgt_is_causal=True,
        )
        return self.output(x)

    @torch.no_grad()
    def as_ours(self) -> Transformer:
        """The same weights in our model, which can generate."""
        ours = Transformer(self.config)
        for mine, yours in stack_pairs(ours, self.stacks):
            mine.copy_(yours)
        for name in ("source_embedding", "target_embedding", "output"):
            getattr(ours, name).load_state_dict(getattr(self, name).state_dict())
        return ours


class Timed(Trainer):
    """A trainer that notes the processor seconds of each step."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)
        self.seconds: list[float] = []

    def _take_step(self, batches: list) -> None:
        start = time.process_time()
        super()._take_step(batches)
        self.seconds.append(time.process_time() - start)


def right(trainer: Timed, unseen: list) -> float:
    """The share of unseen numbers that are translated word for word."""
    model = trainer.model.as_ours() if isinstance(trainer.model, Peer) else trainer.model
    wrong = find_mistakes(model, unseen, trainer.source, trainer.target, max_new=LONGEST)
    return 1 - len(wrong) / len(unseen)


def race(seed: int, split: Split) -> list[dict]:
    """Train both in turns, until both are there."""
    made = number_trainer(Recipe(seed=seed), split=split)
    trainers = {
        name: Timed(model, made.pairs, made.source, made.target, made.recipe)
        for name, model in (("ours", made.model), ("nn.Transformer", Peer(made.model)))
    }
    rows: dict[str, dict] = {}
    for step in range(TURN, made.recipe.steps + 1, TURN):
        for name, trainer in trainers.items():
            trainer.run(TURN, progress=False)
            if name in rows or step < FIRST or step % EVERY:
                continue
            share = right(trainer, split.test[:UNSEEN])
            print(f"seed {seed}, step {step}, {name}: {share:.2%}", flush=True)
            if share >= GOAL:
                rows[name] = {"steps": step, "cpu_seconds": round(sum(trainer.seconds), 1)}
        if len(rows) == len(trainers):
            break
    losses = [trainer.history.losses[0] for trainer in trainers.values()]
    assert abs(losses[0] - losses[1]) < 1e-5, "the same weights and batches, the same loss"
    never = {"steps": None, "cpu_seconds": None}
    return [
        {"model": name, "seed": seed, **rows.get(name, never)}
        | {"seconds_per_step": round(statistics.median(trainer.seconds), 4)}
        for name, trainer in trainers.items()
    ]


def ratios(rows: list[dict]) -> dict:
    """Theirs over ours, the median of the seeds: above 1 ours is faster."""
    found = {}
    for name in ("cpu_seconds", "seconds_per_step"):
        ours, theirs = (
            {row["seed"]: row[name] for row in rows if row["model"] == model}
            for model in ("ours", "nn.Transformer")
        )
        each = [theirs[seed] / ours[seed] for seed in ours if ours[seed] and theirs[seed]]
        found[name] = {
            "median": round(statistics.median(each), 3),
            "each": [round(r, 3) for r in each],
        }
    return found


def main() -> None:
    """Race once for each seed and store it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    rows = read_rows(NAME)
    split = single_numbers()
    for seed in range(seeds):
        if any(row["seed"] == seed for row in rows):
            continue
        rows += race(seed, split)
        write_rows(NAME, WHAT, rows, ratio=ratios(rows))
        for row in rows[-2:]:
            print(row, flush=True)
    print(ratios(rows))


if __name__ == "__main__":
    main()
