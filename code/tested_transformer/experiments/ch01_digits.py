"""The experiment of chapter 1: a self-attention layer learns which digits are in the hundreds place.

The data are lists of number words, cut to eight tokens: 2,000 to train on, 500 to test, of which 6 are
also among the others by chance. Everything is in float64, so that a run ends alike on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ..data.number_words import german_words
from ..layers.self_attention import SelfAttention

LENGTH, D_MODEL = 8, 32
TRAINING, TEST = 2000, 500
DIGITS = ["ein", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

# --- The lists ------------------------------------------------------------------------------------


class Lists(NamedTuple):
    """Lists of eight tokens: their IDs; which are asked for; which are in the hundreds place.

    A digit is asked for if its right neighbor is in the list, too. It is in the hundreds place if that
    neighbor is "hundert".
    """

    tokens: Int[Tensor, "B 8"]
    asked: Bool[Tensor, "B 8"]
    hundreds: Bool[Tensor, "B 8"]


def number_words(number: int) -> list[str]:
    """The tokens of a number and a comma; tens such as zwanzig are one token."""
    return [*german_words(number, segmentation="coarse"), ","]


VOCABULARY = sorted({word for number in range(1, 1000) for word in number_words(number)})


def token_ids(words: list[str]) -> Int[Tensor, " L"]:
    """The index of each word in the vocabulary."""
    return torch.tensor([VOCABULARY.index(word) for word in words])


def words_of(tokens: Int[Tensor, " L"]) -> list[str]:
    """The words of token IDs."""
    return [VOCABULARY[token] for token in tokens.tolist()]


def _cut_list(rng: random.Random) -> list[str]:
    """Eight tokens from somewhere in a list of random numbers from 1 to 999."""
    words: list[str] = []
    while len(words) < LENGTH + 5:
        words += number_words(rng.randint(1, 999))
    start = rng.randrange(6)
    return words[start : start + LENGTH]


@cache
def _all_lists() -> Lists:
    rng = random.Random(0)
    tokens = torch.stack([token_ids(_cut_list(rng)) for _ in range(TRAINING + TEST)])
    asked = torch.isin(tokens, token_ids(DIGITS))
    asked[:, -1] = False  # its right neighbor is cut off
    hundreds = torch.zeros_like(asked)
    hundreds[:, :-1] = tokens[:, 1:] == token_ids(["hundert"])
    return Lists(tokens, asked, hundreds)


def training_lists() -> Lists:
    """The 2,000 lists to train on."""
    return Lists(*(part[:TRAINING] for part in _all_lists()))


def test_lists() -> Lists:
    """The 500 lists to test on."""
    return Lists(*(part[TRAINING:] for part in _all_lists()))


# --- The model ------------------------------------------------------------------------------------


class DigitReader(nn.Module):
    """For each token a logit: is it a digit in the hundreds place?"""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(len(VOCABULARY), D_MODEL)
        self.positions = nn.Embedding(LENGTH, D_MODEL)
        self.attention = SelfAttention(D_MODEL, D_MODEL)
        self.output = nn.Linear(D_MODEL, 1)

    def forward(self, ids: Tensor) -> Tensor:  # *batch L
        """Positions, self-attention with a residual connection, a linear layer."""
        x = self.tokens(ids) + self.positions.weight  # *batch L D
        return self.output(x + self.attention(x)).squeeze(-1)  # *batch L


class WithFunction(nn.Module):
    """A self-attention layer with another function in place of attention, such as one with a bug."""

    def __init__(self, layer: SelfAttention, attend: Attend) -> None:
        super().__init__()
        self.layer, self.attend = layer, attend

    def forward(self, x: Float[Tensor, "*batch L D"]) -> Float[Tensor, "*batch L D"]:
        """Project x three times and call the function."""
        return self.attend(self.layer.query(x), self.layer.key(x), self.layer.value(x))


def train(seed: int, *, zeroed: str | None = None, attend: Attend | None = None) -> DigitReader:
    """Train for 400 steps on 64 lists each.

    zeroed: a parameter that is 0 and stays 0. attend: a function in place of attention.
    """
    tokens, asked, hundreds = training_lists()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = DigitReader().double()
        if zeroed is not None:
            nn.init.zeros_(model.get_parameter(zeroed)).requires_grad_(False)
        if attend is not None:
            model.attention = WithFunction(model.attention, attend)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(400):
            batch = torch.randint(TRAINING, (64,))
            logits = model(tokens[batch])[asked[batch]]
            targets = hundreds[batch][asked[batch]].double()
            loss = binary_cross_entropy_with_logits(logits, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.requires_grad_(False)


# --- What a trained model does --------------------------------------------------------------------


def accuracy(model: nn.Module) -> float:
    """The fraction of the digits of the test lists that the model classifies correctly."""
    tokens, asked, hundreds = test_lists()
    correct = (model(tokens) > 0) == hundreds
    return correct[asked].double().mean().item()


def majority_accuracy() -> float:
    """The same for a model that gives every digit the more frequent label of the training lists."""
    _, asked, hundreds = training_lists()
    label = hundreds[asked].double().mean() > 0.5
    _, asked, hundreds = test_lists()
    return (hundreds[asked] == label).double().mean().item()


def attention_weights(
    model: DigitReader, tokens: Int[Tensor, "*batch 8"]
) -> Float[Tensor, "*batch 8 8"]:
    """The attention weights of the layer: which token attends to which."""
    x = model.tokens(tokens) + model.positions.weight  # *batch L D
    return model.attention(x, return_weights=True)[1]
