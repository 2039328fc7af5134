"""A next-token predictor of one layer, small enough to see a leak happen (chapter 4)."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ..data import number_words
from ..functional.attention import attention

UNITS = dict(zip(number_words.UNITS[1:], number_words.ENGLISH_UNITS[1:10], strict=True))
TENS = dict(zip(number_words.TENS[2:], number_words.ENGLISH_TENS[2:], strict=True))
SENTENCES = [[unit, "und", ten, "=", TENS[ten], UNITS[unit], "."] for unit in UNITS for ten in TENS]
WORDS = ["und", "=", ".", *UNITS, *TENS, *UNITS.values(), *TENS.values()]
LR = 0.1
GIVEN = 4  # "vier und zwanzig =" is given, "twenty four ." is to be found
FLOOR = math.log(len(TENS)) / 6  # one of six next tokens is a free choice among the tens


def sentences() -> Int[Tensor, "N 7"]:
    """The 72 numbers from 21 to 99 with a unit, German = English, as token IDs.

    Shapes: (72, 7).
    """
    token_id = {word: number for number, word in enumerate(WORDS)}
    return torch.tensor([[token_id[word] for word in sentence] for sentence in SENTENCES])


class Predictor(nn.Module):
    """Predict each next token from a mean of the tokens so far, weighted by position.

    One head of attention, in float64, so that training ends alike on every machine. Queries and keys
    are learned for each position; the values are the tokens themselves, one-hot, and a learned matrix
    turns them into logits. It is initialized as a copy, as tied embeddings and residual connections
    initialize a real model.
    """

    def __init__(self, causal: bool, *, width: int = 32, seed: int = 0, attend=attention) -> None:
        super().__init__()
        self.causal, self.attend = causal, attend
        start = torch.from_numpy(np.random.default_rng(seed).normal(size=(2, 6, width)))
        self.query, self.key = nn.Parameter(start[0]), nn.Parameter(start[1])
        self.table = nn.Parameter(3 * torch.eye(len(WORDS), dtype=torch.float64))

    def forward(self, tokens: Int[Tensor, "B L"]) -> Float[Tensor, "B L V"]:
        """Logits for the token after each token."""
        batch, length = tokens.shape
        query, key = (t[:length].expand(batch, -1, -1) for t in (self.query, self.key))
        value = functional.one_hot(tokens, len(WORDS)).to(query.dtype)
        return self.attend(query, key, value, causal=self.causal) @ self.table

    def weights(self) -> Float[Tensor, "L L"]:
        """Which position attends to which."""
        options = {"causal": self.causal, "return_weights": True}
        return attention(self.query, self.key, self.key, **options)[1].detach()


def teacher_forced_loss(predict, rows: Int[Tensor, "N L"]) -> Float[Tensor, ""]:
    """Mean cross-entropy of each next token, when all tokens of a sequence are fed at once."""
    return functional.cross_entropy(predict(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def teacher_forced_accuracy(predict, rows: Int[Tensor, "N L"]) -> float:
    """The fraction of English tokens predicted right, when all tokens of a sequence are fed at once."""
    predictions = predict(rows[:, :-1]).argmax(-1)[:, GIVEN - 1 :]
    return float((predictions == rows[:, GIVEN:]).float().mean())


@torch.no_grad()
def translate(predict, rows: Int[Tensor, "N L"]) -> Int[Tensor, "N L"]:
    """Keep the German, then generate the most probable token, three times."""
    written = rows[:, :GIVEN]
    for _ in range(rows.shape[1] - GIVEN):
        following = predict(written)[:, -1:].argmax(-1)
        written = torch.cat([written, following], dim=1)
    return written


def train(
    causal: bool, *, steps: int = 300, seed: int = 0, attend=attention
) -> tuple[Predictor, float]:
    """Train a predictor on all sentences, with any attention; return it and its last loss."""
    model, rows = Predictor(causal, seed=seed, attend=attend), sentences()
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    for _ in range(steps):
        loss = teacher_forced_loss(model, rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, loss.item()
