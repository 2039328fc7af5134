"""The model that comes with the package: whole, small, and as good as the book says."""

import pytest
import torch

from tested_transformer.data import single_numbers
from tested_transformer.generation import find_mistakes
from tested_transformer.trained import SHIPPED, SIZES, load_number_model, number_trainer
from tested_transformer.training import Recipe


def test_it_translates_numbers_that_it_never_saw():
    model, source, target = load_number_model()
    assert not model.training
    split = single_numbers()
    assert not set(split.train) & set(split.test)
    assert len(find_mistakes(model, split.test[:400], source, target)) <= 2  # 99.5 %


def test_it_is_what_the_script_makes():
    model, source, target = load_number_model()
    trainer = number_trainer(Recipe(steps=1))
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
