"""A next-token predictor of one layer, small enough to see a leak happen (chapter 4)."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ..functional.attention import attention

UNITS = {
    "ein": "one", "zwei": "two", "drei": "three", "vier": "four", "fünf": "five", "sechs": "six",
    "sieben": "seven", "acht": "eight", "neun": "nine",
}  # fmt: skip
TENS = {
    "zwanzig": "twenty", "dreißig": "thirty", "vierzig": "forty", "fünfzig": "fifty",
    "sechzig": "sixty", "siebzig": "seventy", "achtzig": "eighty", "neunzig": "ninety",
}  # fmt: skip
SENTENCES = [[unit, "und", ten, "=", TENS[ten], UNITS[unit], "."] for unit in UNITS for ten in TENS]
WORDS = ["und", "=", ".", *UNITS, *TENS, *UNITS.values(), *TENS.values()]
LR = 0.1
GIVEN = 4  # "vier und zwanzig =" is given, "twenty four ." is to be found
FLOOR = math.log(len(TENS)) / 6  # one of six next words is a free choice among the tens


def sentences() -> Int[Tensor, "N 7"]:
    """The 72 numbers from 21 to 99 with a unit, German = English, as word numbers.

    Shapes: (72, 7).
    """
    place = {word: number for number, word in enumerate(WORDS)}
    return torch.tensor([[place[word] for word in sentence] for sentence in SENTENCES])


class Predictor(nn.Module):
    """Guess each next word from a mean of the words so far, weighted by place.

    One head of attention, in float64, so that training ends alike on every machine. Queries and keys are learned for each place; the values are the words
    themselves, one-hot, and a learned table turns them into guesses. The table starts as a copy, as
    tied embeddings and residual connections make a real model start.
    """

    def __init__(self, causal: bool, *, width: int = 32, seed: int = 0) -> None:
        super().__init__()
        self.causal = causal
        start = torch.from_numpy(np.random.default_rng(seed).normal(size=(2, 6, width)))
        self.query, self.key = nn.Parameter(start[0]), nn.Parameter(start[1])
        self.table = nn.Parameter(3 * torch.eye(len(WORDS), dtype=torch.float64))

    def forward(self, tokens: Int[Tensor, "B L"]) -> Float[Tensor, "B L V"]:
        """Logits for the word after each word."""
        batch, length = tokens.shape
        query, key = (t[:length].expand(batch, -1, -1) for t in (self.query, self.key))
        value = functional.one_hot(tokens, len(WORDS)).to(query.dtype)
        return attention(query, key, value, causal=self.causal) @ self.table

    def weights(self) -> Float[Tensor, "L L"]:
        """Which place looks at which."""
        options = {"causal": self.causal, "return_weights": True}
        return attention(self.query, self.key, self.key, **options)[1].detach()


def teacher_forced_loss(predict, rows: Int[Tensor, "N L"]) -> Float[Tensor, ""]:
    """Mean cross-entropy of each next word, when all words of the row are fed at once."""
    return functional.cross_entropy(predict(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def teacher_forced_accuracy(predict, rows: Int[Tensor, "N L"]) -> float:
    """How many English words are guessed right, when all words of the row are fed at once."""
    guesses = predict(rows[:, :-1]).argmax(-1)[:, GIVEN - 1 :]
    return float((guesses == rows[:, GIVEN:]).float().mean())


@torch.no_grad()
def translate(predict, rows: Int[Tensor, "N L"]) -> Int[Tensor, "N L"]:
    """Keep the German, then write the likeliest word, three times, each from what stands there."""
    written = rows[:, :GIVEN]
    for _ in range(rows.shape[1] - GIVEN):
        following = predict(written)[:, -1:].argmax(-1)
        written = torch.cat([written, following], dim=1)
    return written


def train(causal: bool, *, steps: int = 300, seed: int = 0) -> tuple[Predictor, float]:
    """Train a predictor on all sentences; return it and its last loss."""
    model, rows = Predictor(causal, seed=seed), sentences()
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    for _ in range(steps):
        loss = teacher_forced_loss(model, rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, loss.item()
