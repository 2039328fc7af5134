"""How should a word be cut? The same Transformer reads German numbers as morphemes, pieces or letters.

Single numbers below a million. The German word is cut; the English side stays words, so that every
model has the same to say. The pieces of the byte-pair encoding are counted in the training words.
The record is written after each model, and a run goes on where the last one stopped.

Usage: OMP_NUM_THREADS=1 python benchmarks/segmentation.py [--seeds 1]
"""

import argparse
import time
from statistics import mean

import torch
from record import measure_missing

from tested_transformer.analysis.translation import find_mistakes
from tested_transformer.data import Split, single_numbers
from tested_transformer.data.subwords import Cut, Subwords, characters, resegment, written_words
from tested_transformer.experiments.ch10_number_models import number_trainer
from tested_transformer.training.trainer import Recipe

NAME = "segmentation"
SIZES = {"bpe 100": 100, "bpe 1000": 1000}  # different pieces, characters included
CUTS = ("morphemes", *SIZES, "characters")
WHAT = (
    "right: the share of 2,000 unseen single numbers that the same Transformer translates word for "
    "word (greedy), by how the German word is cut; tokens: mean per German number; vocabulary: "
    "different German tokens, without the four special ones"
)


def cutter(segmentation: str, split: Split) -> Cut:
    """How to cut the German side, from morphemes: the written word first, then its pieces."""
    if segmentation == "morphemes":
        return tuple
    if segmentation == "characters":
        return lambda words: characters(written_words(words))
    pieces = Subwords.train(
        [written_words(pair.source) for pair in split.train], SIZES[segmentation]
    )
    return lambda words: pieces.split(written_words(words))


def measure(segmentation: str, seed: int) -> dict:
    """Train one model and let it translate what it has never seen."""
    split, recipe = single_numbers(), Recipe(seed=seed)
    as_pieces = cutter(segmentation, split)
    split = Split(resegment(split.train, source=as_pieces), resegment(split.test, source=as_pieces))
    trainer, start = number_trainer(recipe, split=split), time.process_time()
    losses = trainer.run(progress=False).losses
    seconds = time.process_time() - start
    wrong = find_mistakes(trainer.model, split.test, trainer.source, trainer.target)
    return {
        "segmentation": segmentation, "seed": seed,
        "tokens": round(mean(len(pair.source) for pair in split.train), 2),
        "vocabulary": len(trainer.source) - 4,
        "steps": recipe.steps, "cpu_seconds": round(seconds, 1),
        "right": round(1 - len(wrong) / len(split.test), 4),
        "losses": [round(loss, 4) for loss in losses[19::20]],
        "example": [" ".join(pair) for pair in split.test[0]],
        "mistakes": [
            {"source": " ".join(m.pair.source), "target": " ".join(m.pair.target),
             "said": " ".join(m.translation)}
            for m in wrong[:: max(1, len(wrong) // 3)][:3]
        ],
    }  # fmt: skip


def main() -> None:
    """Measure what is missing, and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    wanted = [
        {"segmentation": segmentation, "seed": seed}
        for seed in range(seeds)
        for segmentation in CUTS
    ]
    shown = ("segmentation", "seed", "tokens", "vocabulary", "cpu_seconds", "right")
    measure_missing(NAME, WHAT, wanted, measure, shown)


if __name__ == "__main__":
    main()
