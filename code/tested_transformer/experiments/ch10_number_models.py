"""The book's own model: how it is made, and the trained one that comes with the package."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch

from ..bounds import AtLeast, AtMost, Seed
from ..data import Pair, Split, Vocabulary, number_pair, single_numbers
from ..errors import argument_error
from ..models.transformer import Transformer, TransformerConfig
from ..shapes import checked
from ..training.checkpoint import load_trained
from ..training.trainer import Recipe, Trainer

__all__ = [
    "book_numbers",
    "first_numbers",
    "first_trainer",
    "load_first_model",
    "load_number_model",
    "number_trainer",
    "numbers_without",
]

SHIPPED = Path(__file__).parents[1] / "data" / "trained" / "number_words"
FIRST = SHIPPED.with_name("first_numbers")  # the small model of "The first ten minutes"
SIZES = {
    "d_model": 128, "num_heads": 4, "num_encoder_layers": 2, "num_decoder_layers": 2,
    "dropout": 0.0,
}  # fmt: skip
FIRST_SIZES = {"d_model": 64, "num_heads": 1, "num_encoder_layers": 2, "num_decoder_layers": 1}
Unseen = Annotated[int, AtLeast(0), AtMost(979)]  # 1 to 20 are always shown
NEVER_SHOWN = (24, 42)  # the book's own number and its mirror image


def book_numbers() -> Split:
    """20,000 pairs to learn from, short and round numbers among them, and 2,000 never shown.

    Of 20,000 numbers sampled uniformly below a million, two are below 100 and twenty are whole
    thousands: a model trained on them generates "twenty four thousand and twenty" for 24. So here
    `first_numbers().train` comes three times, then 6,000 numbers each of whose six digits is 0 half
    of the time (pairs may come twice), and `single_numbers().train` fills up. What those two hold
    back is left out, and so are 24 and 42: 2,088, 5,827 and 12,085 pairs stay.

    Source: chapter 10.
    """
    small, uniform = first_numbers(), single_numbers()
    held_out = {*small.test, *uniform.test, *(number_pair([number]) for number in NEVER_SHOWN)}
    pairs = 3 * small.train + _numbers_with_zeros(6000) + uniform.train
    return Split([pair for pair in pairs if pair not in held_out][:20_000], uniform.test)


def _numbers_with_zeros(count: int) -> list[Pair]:
    """Numbers below a million, sampled digit by digit, so that any part of a number may be missing."""
    rng, numbers = random.Random(0), []
    while len(numbers) < count:
        digits = [rng.choice((0, rng.randint(1, 9))) for _ in range(6)]
        if any(digits):
            numbers.append(sum(digit * 10**power for power, digit in enumerate(digits)))
    return [number_pair([number]) for number in numbers]


@checked
def number_trainer(
    recipe: Recipe | None = None,
    *,
    split: Split | None = None,
    build: Callable[[TransformerConfig], Transformer] = Transformer,
    **changes: Any,
) -> Trainer:
    """A new model for German number words, with its data, ready to `run()`.

    Without arguments: `book_numbers()`, 600 steps, under two minutes of one processor core. build:
    what makes the model from its configuration. changes: fields of TransformerConfig. The weights are
    initialized from the recipe's seed.

    Raises: TypeError or ValueError that name the argument.
    Source: chapter 10.
    """
    recipe = Recipe() if recipe is None else recipe
    split = book_numbers() if split is None else split
    source = Vocabulary.of(pair.source for pair in split.train)
    target = Vocabulary.of(pair.target for pair in split.train)
    config = TransformerConfig(len(source), len(target), **SIZES | changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = build(config)
    return Trainer(model, split.train, source, target, recipe, held_out=split.test)


def load_number_model() -> tuple[Transformer, Vocabulary, Vocabulary]:
    """The trained model that comes with the package, in eval mode, and its two vocabularies.

    It is what `number_trainer()` makes; tools/train_number_words.py made it.

    Source: chapter 10.
    """
    return load_trained(SHIPPED)


@checked
def first_numbers(*, unseen: Unseen = 300, seed: Seed = 0) -> Split:
    """The numbers from 1 to 999: so many above 20 are never shown in training, all others are.

    Raises: TypeError or ValueError for a number of unseen ones that cannot be.
    Source: the page "The first ten minutes".
    """
    return numbers_without({*random.Random(seed).sample(range(21, 1000), unseen)})


@checked
def numbers_without(hidden: set[int]) -> Split:
    """The numbers from 1 to 999: the hidden ones are for testing, all others for training.

    Raises: TypeError for what is no set of integers; ValueError for a number that is not one of them.
    Source: the page "The first ten minutes".
    """
    if strange := hidden - {*range(1, 1000)}:
        raise argument_error(ValueError, "hidden", min(strange, key=str), "numbers from 1 to 999")
    pairs = {number: number_pair([number]) for number in range(1, 1000)}
    return Split(
        [pair for number, pair in pairs.items() if number not in hidden],
        [pair for number, pair in pairs.items() if number in hidden],
    )


def first_trainer(recipe: Recipe | None = None, **changes: Any) -> Trainer:
    """A new small model for numbers below a thousand: one decoder layer with one head.

    So there is one attention from English to German, and a picture of it is no average. 600 steps,
    about 30 seconds of one processor core.

    Raises: TypeError or ValueError that name the argument.
    Source: the page "The first ten minutes".
    """
    return number_trainer(recipe, split=first_numbers(), **FIRST_SIZES | changes)


def load_first_model() -> tuple[Transformer, Vocabulary, Vocabulary]:
    """The small trained model of "The first ten minutes", in eval mode, and its two vocabularies.

    It is what `first_trainer()` makes; tools/train_first_model.py made it.

    Source: the page "The first ten minutes".
    """
    return load_trained(FIRST)
