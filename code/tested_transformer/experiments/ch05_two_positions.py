"""Two small experiments of chapter 5: a task that one head cannot do, one that scrambled heads can."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ..data.number_words import UNITS
from ..functional.attention import attention
from ..layers.multi_head import MultiHeadAttention, concat_heads, split_heads

WORDS = UNITS[1:]
LENGTH = 8
LR = 0.02
PADDING = len(WORDS)  # the ID of the padding token


def rows(count: int, seed: int) -> Int[Tensor, "N L"]:
    """Sequences of eight random words, as token IDs."""
    return torch.from_numpy(np.random.default_rng(seed).integers(0, len(WORDS), (count, LENGTH)))


def train(model: nn.Module, solution: Callable[[Tensor], Tensor], *, steps: int = 200) -> nn.Module:
    """Train on new sequences at every step; the solution gives the targets of a sequence."""
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    for step in range(steps):
        words = rows(64, seed=step)
        logits, wanted = model(words), solution(words)
        loss = functional.cross_entropy(logits.flatten(0, -2), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


# --- Naming both neighbors ------------------------------------------------------------------------


def neighbors(words: Int[Tensor, "N L"]) -> Int[Tensor, "N L-2 2"]:
    """The word on the left and the word on the right of each word that has both."""
    return torch.stack([words[:, :-2], words[:, 2:]], dim=-1)


class NeighborModel(nn.Module):
    """One attention layer that must name both neighbors of each word, by two linear readouts.

    Token and position embeddings are added, as everywhere. With `hidden`, a layer of ReLUs stands
    before the readout.
    In float64, so that training ends alike on every machine.
    """

    def __init__(self, num_heads: int, *, width: int = 24, hidden: int = 0, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.word = nn.Embedding(len(WORDS), width)
            self.position = nn.Embedding(LENGTH, width)
            self.heads = MultiHeadAttention(width, num_heads)
            layers = [nn.Linear(width, hidden), nn.ReLU()] if hidden else []
            self.readout = nn.Sequential(*layers, nn.Linear(hidden or width, 2 * len(WORDS)))
        self.double()

    def embed(self, words: Int[Tensor, "N L"]) -> Float[Tensor, "N L D"]:
        """Token and position embeddings."""
        return self.word(words) + self.position.weight

    def forward(self, words: Int[Tensor, "N L"]) -> Float[Tensor, "N L-2 2 V"]:
        """Logits for the word on the left and for the word on the right."""
        return self.readout(self.heads(self.embed(words)))[:, 1:-1].unflatten(-1, (2, -1))

    @torch.no_grad()
    def weights(self, words: Int[Tensor, "N L"]) -> Float[Tensor, "H L L"]:
        """Attention weights, head by head, averaged over the sequences."""
        return self.heads(self.embed(words), return_weights=True)[1].mean(0)


@torch.no_grad()
def both_right(model: NeighborModel) -> float:
    """How often both neighbors are named right, on 500 new sequences."""
    words = rows(500, seed=10_000)
    return float((model(words).argmax(-1) == neighbors(words)).all(-1).double().mean())


# --- Copying and reversing ------------------------------------------------------------------------


def right_heads(x, w_query, w_key, w_value, w_output, num_heads, *, context=None, mask=None):
    """Multi-head attention as a function of its matrices."""
    context = x if context is None else context
    projected = (x @ w_query, context @ w_key, context @ w_value)
    query, key, value = (split_heads(t, num_heads) for t in projected)
    return concat_heads(attention(query, key, value, mask=mask)) @ w_output


class Copier(nn.Module):
    """One attention layer, right or wrong, that must copy a sequence, or reverse it.

    `heads` is a function as `right_heads`. In float64, so that training ends alike on every machine.
    """

    def __init__(
        self, heads: Callable, *, num_heads: int = 4, width: int = 32, seed: int = 0
    ) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)

        def matrix(rows: int, columns: int, std: float = 1.0) -> nn.Parameter:
            return nn.Parameter(std * torch.from_numpy(rng.normal(size=(rows, columns))))

        self.word, self.position = matrix(PADDING + 1, width), matrix(2 * LENGTH, width)
        self.matrices = nn.ParameterList(matrix(width, width, width**-0.5) for _ in range(4))
        self.readout = matrix(width, len(WORDS), width**-0.5)
        self.attend, self.num_heads = heads, num_heads

    def forward(self, words: Int[Tensor, "N L"]) -> Float[Tensor, "N L V"]:
        """Logits for the token at each position; padding is masked."""
        x = self.word[words] + self.position[: words.shape[1]]
        real = (words != PADDING)[:, None, None]
        return self.attend(x, *self.matrices, self.num_heads, mask=real) @ self.readout


@torch.no_grad()
def accuracy(model: Copier, solution: Callable[[Tensor], Tensor], padding: int = 0) -> float:
    """The fraction of tokens that are right on 500 new sequences, with this padding after each."""
    words = rows(500, seed=10_000)
    written = model(functional.pad(words, (0, padding), value=PADDING))[:, :LENGTH].argmax(-1)
    return float((written == solution(words)).double().mean())
