"""The experiment of chapter 1: its lists, its model, and the training that the chapter shows."""

import math

import pytest
import torch

from tested_transformer import attention
from tested_transformer.experiments import ch01_digits as digits


class Fixed(torch.nn.Module):
    """A model that answers what it is told, for the test lists or for one list."""

    def __init__(self, logits):
        super().__init__()
        self.logits = logits

    def forward(self, tokens):
        return self.logits


@pytest.fixture(scope="module")
def trained():
    return digits.train(0)


@pytest.mark.parametrize("lists", [digits.training_lists(), digits.test_lists()])
def test_a_digit_is_in_the_hundreds_place_if_hundert_follows(lists):
    for tokens, asked, hundreds in zip(*lists, strict=True):
        words = digits.words_of(tokens)
        neighbors = [*words[1:], None]
        is_digit = [word in digits.DIGITS for word in words]
        assert asked.tolist() == [*is_digit[:-1], False]
        assert hundreds.tolist() == [neighbor == "hundert" for neighbor in neighbors]
        assert torch.equal(digits.token_ids(words), tokens)


def test_there_are_2000_lists_to_train_on_and_500_to_test():
    training, test = digits.training_lists(), digits.test_lists()
    assert (training.tokens.shape, test.tokens.shape) == ((2000, 8), (500, 8))
    assert sorted(set(training.tokens.flatten().tolist())) == list(range(len(digits.VOCABULARY)))
    seen = {tuple(tokens) for tokens in training.tokens.tolist()}
    assert sum(tuple(tokens) in seen for tokens in test.tokens.tolist()) == 6


def test_the_model_adds_attention_to_tokens_and_positions():
    torch.manual_seed(0)
    model = digits.DigitReader().double().requires_grad_(False)
    tokens = digits.test_lists().tokens[:3]
    x = model.tokens.weight[tokens] + model.positions.weight
    layer = model.attention
    query, key, value = (x @ w.weight.mT for w in (layer.query, layer.key, layer.value))
    weights = (query @ key.mT / math.sqrt(32)).softmax(-1)
    expected = (x + weights @ value) @ model.output.weight[0] + model.output.bias
    torch.testing.assert_close(model(tokens), expected)
    torch.testing.assert_close(digits.attention_weights(model, tokens), weights)


def test_a_seed_trains_the_same_model_and_leaves_random_numbers_alone(trained):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    again = digits.train(0)
    assert torch.equal(torch.rand(3), expected)
    for parameter, same in zip(trained.parameters(), again.parameters(), strict=True):
        assert torch.equal(parameter, same)


def test_it_learns_the_task_and_not_without_attention(trained):
    without = digits.train(0, zeroed="attention.value.weight")
    assert not without.attention.value.weight.any()
    assert without.attention.query.weight.any()
    assert digits.accuracy(trained) > 0.99
    assert abs(digits.accuracy(without) - digits.majority_accuracy()) < 0.05


def test_another_function_stands_in_for_attention(trained):
    same = digits.train(0, attend=attention)
    assert digits.accuracy(same) == digits.accuracy(trained)
    nothing = digits.train(0, attend=lambda query, key, value: 0 * value)
    assert digits.accuracy(nothing) < 0.6


def test_accuracy_counts_digits_that_are_asked_for():
    _, asked, hundreds = digits.test_lists()
    right = 2.0 * hundreds - 1
    assert digits.accuracy(Fixed(right)) == 1.0
    assert digits.accuracy(Fixed(-right)) == 0.0
    assert digits.accuracy(Fixed(right.where(asked, -right))) == 1.0
    assert digits.accuracy(Fixed(torch.ones(500, 8))) == digits.majority_accuracy()
