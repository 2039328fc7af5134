"""Why attention? A GRU, a GRU with attention and a Transformer learn the same number words.

Three models of about 0.93 million weights, the same words, recipe and number of steps. "single" is
one number below a million; "rows" are one to eight numbers below a thousand, which all three learn
with 800 steps and once more with 1,600. The record is written after each model, and a run goes on
where the last one stopped.

Usage: OMP_NUM_THREADS=1 python benchmarks/why_attention.py [--seeds 1]
"""

import argparse
import time
from collections import Counter

import torch
from record import measure_missing

from tested_transformer.analysis.translation import Mistake, find_mistakes
from tested_transformer.data import Pair, Split, Vocabulary, number_rows, single_numbers
from tested_transformer.experiments.ch10_number_models import number_trainer
from tested_transformer.models.recurrent import RecurrentConfig, RecurrentTranslator
from tested_transformer.training.trainer import Recipe, Trainer

NAME = "why_attention"
WIDTHS = {"gru": 292, "gru with attention": 248}  # about as many weights as the Transformer has
MODELS = ("transformer", "gru with attention", "gru")
TASKS = (("rows", 800), ("single", 600), ("rows", 1600))  # and steps
WHAT = (
    "right: the share of unseen single numbers (2,000) or rows of numbers (1,000) that a model, "
    "trained with the same recipe and number of steps, translates word for word (greedy)"
)


def split_of(task: str) -> Split:
    """The pairs of a task, the same for every model."""
    return single_numbers() if task == "single" else number_rows(test=1_000)


def trainer_of(model: str, split: Split, recipe: Recipe) -> Trainer:
    """A model at its start, with the seed of the recipe."""
    if model == "transformer":
        return number_trainer(recipe, split=split)
    source = Vocabulary.of(pair.source for pair in split.train)
    target = Vocabulary.of(pair.target for pair in split.train)
    sizes = {"d_model": WIDTHS[model], "attention": model != "gru"}
    torch.manual_seed(recipe.seed)
    made = RecurrentTranslator(RecurrentConfig(len(source), len(target), **sizes))
    return Trainer(made, split.train, source, target, recipe, held_out=split.test)


def numbers_in(pair: Pair) -> int:
    """How many numbers a row has."""
    return pair.source.count(",") + 1


def measure(task: str, steps: int, model: str, seed: int) -> dict:
    """Train one model and let it translate what it has never seen."""
    recipe, split = Recipe(steps=steps, seed=seed), split_of(task)
    trainer, start = trainer_of(model, split, recipe), time.process_time()
    losses = trainer.run(progress=False).losses
    seconds = time.process_time() - start
    wrong = find_mistakes(trainer.model, split.test, trainer.source, trainer.target)
    row = {
        "task": task, "model": model, "seed": seed,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "steps": recipe.steps, "rate": recipe.rate, "cpu_seconds": round(seconds, 1),
        "right": 1 - len(wrong) / len(split.test),
    }  # fmt: skip
    row["right"] = round(row["right"], 4)
    if task == "rows":
        row["by_length"] = by_length(split.test, wrong)
    row["losses"] = [round(loss, 4) for loss in losses[19::20]]
    row["examples"] = [in_words(mistake) for mistake in wrong[:: max(1, len(wrong) // 3)][:3]]
    return row


def by_length(pairs: list[Pair], wrong: list[Mistake]) -> dict[str, float]:
    """The share that is right among rows of each length."""
    every, failed = (Counter(map(numbers_in, some)) for some in (pairs, [m.pair for m in wrong]))
    return {str(n): round(1 - failed[n] / every[n], 4) for n in sorted(every)}


def in_words(mistake: Mistake) -> dict[str, str]:
    """A mistake that people can read."""
    parts = {
        "source": mistake.pair.source,
        "target": mistake.pair.target,
        "said": mistake.translation,
    }
    return {name: " ".join(words) for name, words in parts.items()}


def main() -> None:
    """Measure what is missing, and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    wanted = [
        {"task": task, "steps": steps, "model": model, "seed": seed}
        for seed in range(seeds)
        for task, steps in TASKS
        for model in MODELS
    ]
    shown = ("task", "steps", "model", "seed", "parameters", "cpu_seconds", "right", "by_length")
    measure_missing(NAME, WHAT, wanted, measure, shown)


if __name__ == "__main__":
    main()
