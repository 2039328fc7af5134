"""The model that comes with the package: whole, small, and as good as the book says."""

from collections import Counter
from functools import cache

import pytest
import torch

from tested_transformer.analysis.translation import find_mistakes
from tested_transformer.data import number_pair, single_numbers
from tested_transformer.experiments.ch10_number_models import (
    SHIPPED,
    SIZES,
    book_numbers,
    first_numbers,
    load_number_model,
    number_trainer,
    numbers_without,
)
from tested_transformer.training.trainer import Recipe

# Tens of thousands of pairs, whose functions other tests check.
long_lists = pytest.mark.plain_types
numbers = cache(book_numbers)


def test_it_translates_numbers_that_it_never_saw():
    model, source, target = load_number_model()
    assert not model.training
    even = numbers().test[:400]
    assert len(find_mistakes(model, even, source, target)) <= 2  # 99.5 %
    assert len(find_mistakes(model, first_numbers().test, source, target)) <= 1  # of 300
    assert find_mistakes(model, [number_pair([n]) for n in (24, 42)], source, target) == []


@long_lists
def test_what_the_book_learns_from():
    small, even, book = first_numbers(), single_numbers(), numbers()
    count, hidden = Counter(book.train), {number_pair([n]) for n in (24, 42)}
    assert len(book.train) == 20_000
    assert book.test == even.test
    assert len(set(even.test)) == 2_000
    assert not count.keys() & {*even.test, *small.test, *hidden}
    shown = set(small.train) - {*even.test, *hidden}
    assert len(shown) == 696
    assert min(count[pair] for pair in shown) >= 3
    assert sum(count[number_pair([1000 * n])] for n in range(1, 1000)) > 500
    assert sum(count[number_pair([n])] for n in range(1000, 10_000)) > 500
    assert book_numbers() == book


def test_hidden_numbers_are_for_testing_alone():
    split = numbers_without({999, 24})
    assert split.test == [number_pair([24]), number_pair([999])]
    assert split.train == [number_pair([n]) for n in range(1, 999) if n != 24]
    with pytest.raises(ValueError, match="hidden: expected numbers from 1 to 999, got 1000"):
        numbers_without({"a", 5, 1000})


@long_lists
def test_it_is_what_the_script_makes():
    model, source, target = load_number_model()
    trainer = number_trainer(Recipe(steps=1))
    assert trainer.pairs == numbers().train
    assert trainer.model.config == model.config
    assert (trainer.source.words, trainer.target.words) == (source.words, target.words)
    assert {name: getattr(model.config, name) for name in SIZES} == SIZES


def test_its_weights_are_under_four_megabytes():
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 4_000_000


def test_a_seed_draws_the_weights_and_leaves_the_generator_alone():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    small = {"split": single_numbers(train=20, test=2), "d_model": 8, "num_heads": 2}
    a, b, c = (number_trainer(Recipe(seed=seed), **small).model for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(a.output.weight, b.output.weight)
    assert not torch.equal(a.output.weight, c.output.weight)


@pytest.mark.plain_types
def test_an_unknown_size_is_refused():
    with pytest.raises(TypeError, match="d_modle"):
        number_trainer(d_modle=8)
