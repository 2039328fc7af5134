"""The book's own model: how it is made, and the trained one that comes with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from .checkpoint import load_trained
from .data import Split, Vocabulary, single_numbers
from .training import Recipe, Trainer
from .transformer import Transformer, TransformerConfig

SHIPPED = Path(__file__).parent / "data" / "trained" / "number_words"
SIZES = {
    "d_model": 128, "num_heads": 4, "num_encoder_layers": 2, "num_decoder_layers": 2,
    "dropout": 0.0,
}  # fmt: skip


def number_trainer(
    recipe: Recipe | None = None, *, split: Split | None = None, **changes: Any
) -> Trainer:
    """A new model for German number words, with its data, ready to `run()`.

    Without arguments: 20,000 single numbers below a million, 600 steps, about 90 seconds of one
    processor core. changes: fields of TransformerConfig. The weights are drawn from the recipe's seed.

    Raises: TypeError or ValueError that name the argument.
    Source: chapter 10.
    """
    recipe = Recipe() if recipe is None else recipe
    split = single_numbers() if split is None else split
    source = Vocabulary.of(pair.source for pair in split.train)
    target = Vocabulary.of(pair.target for pair in split.train)
    config = TransformerConfig(len(source), len(target), **SIZES | changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = Transformer(config)
    return Trainer(model, split.train, source, target, recipe, held_out=split.test)


def load_number_model() -> tuple[Transformer, Vocabulary, Vocabulary]:
    """The trained model that comes with the package, in eval mode, and its two vocabularies.

    It is what `number_trainer()` makes; tools/train_number_words.py made it.

    Source: chapter 10.
    """
    return load_trained(SHIPPED)
