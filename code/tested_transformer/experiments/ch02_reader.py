"""The experiment of chapter 2: a GRU reads a list and answers, from its last state or by attention.

`benchmarks/reader.py` trains each reader until its accuracy stops improving, and the chapter trains
some for a few seconds. Everything is in float64, so that a run ends alike on every machine.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau

from ..functional.scoring import dot_scores

LABELS, DIGITS, MOST_PAIRS = 16, 10, 12
D_MODEL, HIDDEN_UNITS = 32, 16
EVERY, SMALLEST_RATE = 250, 1e-4

# --- Scores with their parameters -----------------------------------------------------------------


class Dot(nn.Module):
    """q^T k: no parameters."""

    def forward(
        self, query: Float[Tensor, "B L D"], key: Float[Tensor, "B S D"]
    ) -> Float[Tensor, "B L S"]:
        """Score each query against each key."""
        return dot_scores(query, key, scale=1.0)


class Bilinear(nn.Module):
    """q^T W k: D^2 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(D_MODEL, D_MODEL, bias=False)

    def forward(
        self, query: Float[Tensor, "B L D"], key: Float[Tensor, "B S D"]
    ) -> Float[Tensor, "B L S"]:
        """Score each query against each key."""
        return query @ self.w(key).mT


class Additive(nn.Module):
    """w_v^T tanh(W_q q + W_k k): h (2 D + 1) parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.w_query = nn.Linear(D_MODEL, HIDDEN_UNITS, bias=False)
        self.w_key = nn.Linear(D_MODEL, HIDDEN_UNITS, bias=False)
        self.w_v = nn.Linear(HIDDEN_UNITS, 1, bias=False)

    def forward(
        self, query: Float[Tensor, "B L D"], key: Float[Tensor, "B S D"]
    ) -> Float[Tensor, "B L S"]:
        """Score each query against each key."""
        query = self.w_query(query).unsqueeze(-2)  # B L 1 h
        key = self.w_key(key).unsqueeze(-3)  # B 1 S h
        return self.w_v(torch.tanh(query + key)).squeeze(-1)  # B L S


# --- The reader -----------------------------------------------------------------------------------


class Reader(nn.Module):
    """Read pairs with a GRU; answer each question from its last state, or by attention to all."""

    def __init__(
        self, scores: nn.Module | None = None, state: int = D_MODEL, readout: int = 64
    ) -> None:
        super().__init__()
        self.label = nn.Embedding(LABELS, D_MODEL)
        self.digit = nn.Embedding(DIGITS, D_MODEL)
        self.gru = nn.GRU(2 * D_MODEL, state, batch_first=True)
        self.scores = scores
        self.output = nn.Sequential(
            nn.Linear(state + D_MODEL, readout), nn.ReLU(), nn.Linear(readout, DIGITS)
        )

    def read(
        self, labels: Int[Tensor, "B S"], digits: Int[Tensor, "B S"]
    ) -> Float[Tensor, "B S D"]:
        """The state after each pair."""
        pairs = torch.cat([self.label(labels), self.digit(digits)], dim=-1)
        return self.gru(pairs)[0]

    def forward(
        self, labels: Int[Tensor, "B S"], digits: Int[Tensor, "B S"], asked: Int[Tensor, "B L"]
    ) -> Float[Tensor, "B L 10"]:
        """Logits of the digit that belongs to each label asked for."""
        states = self.read(labels, digits)  # B S D
        query = self.label(asked)  # B L D
        if self.scores is None:  # the last state, for every question
            context = states[:, -1:].repeat(1, asked.shape[1], 1)  # B L D
        else:
            weights = self.scores(query, states).softmax(-1)  # B L S
            context = weights @ states  # B L D
        return self.output(torch.cat([context, query], dim=-1))  # B L 10

    @torch.no_grad()
    def weights(
        self, labels: Int[Tensor, "B S"], digits: Int[Tensor, "B S"], asked: Int[Tensor, "B L"]
    ) -> Float[Tensor, "B L S"]:
        """The attention weights with which each question is answered."""
        states = self.read(labels, digits)  # B S D
        return self.scores(self.label(asked), states).softmax(-1)  # B L S


class PairReader(Reader):
    """A linear layer in place of the GRU: the vector of a pair knows that pair alone."""

    def __init__(self, scores: nn.Module) -> None:
        super().__init__(scores)
        del self.gru
        self.pair = nn.Linear(2 * D_MODEL, D_MODEL)

    def read(
        self, labels: Int[Tensor, "B S"], digits: Int[Tensor, "B S"]
    ) -> Float[Tensor, "B S D"]:
        """A vector for each pair."""
        return self.pair(torch.cat([self.label(labels), self.digit(digits)], dim=-1))


READERS: dict[str, Callable[[], Reader]] = {
    "last state of 32": lambda: Reader(),
    "last state of 64": lambda: Reader(state=64),
    "last state of 32, wide MLP": lambda: Reader(readout=256),
    "dot": lambda: Reader(Dot()),
    "bilinear": lambda: Reader(Bilinear()),
    "additive": lambda: Reader(Additive()),
    "dot, no GRU": lambda: PairReader(Dot()),
}


def new_reader(name: str, seed: int) -> Reader:
    """An untrained reader by its name."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return READERS[name]().double()


# --- Lists and training ---------------------------------------------------------------------------


def lists(
    count: int, num_pairs: int, generator: torch.Generator
) -> tuple[Int[Tensor, "B S"], Int[Tensor, "B S"], Int[Tensor, "B S"], Int[Tensor, "B S"]]:
    """Lists of a label and a digit each, no label twice; all labels in another order, their digits."""
    labels = torch.rand(count, LABELS, generator=generator).argsort(-1)[:, :num_pairs]
    digits = torch.randint(DIGITS, (count, num_pairs), generator=generator)
    order = torch.rand(count, num_pairs, generator=generator).argsort(-1)
    return labels, digits, labels.gather(1, order), digits.gather(1, order)


def train_on_batch(
    reader: Reader, optimizer: torch.optim.Optimizer, generator: torch.Generator
) -> None:
    """One step on 64 lists of one random length, from 1 to 12 pairs."""
    num_pairs = int(torch.randint(1, MOST_PAIRS + 1, (), generator=generator))
    *given, answers = lists(64, num_pairs, generator)
    loss = functional.cross_entropy(reader(*given).flatten(0, 1), answers.flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
    optimizer.step()


def train(reader: Reader, seed: int, batches: int) -> list[float]:
    """Train for at most `batches` batches, less if validation accuracy stops improving.

    It is measured every 250 batches. After six measurements without a gain of half a percentage
    point the learning rate is divided by 5; the third time, training stops. Returns the accuracies.
    """
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(reader.parameters(), lr=0.01)
    plateau = {"mode": "max", "factor": 0.2, "patience": 5}
    schedule = ReduceLROnPlateau(optimizer, **plateau, threshold=0.005, threshold_mode="abs")
    measured = []
    for batch in range(1, batches + 1):
        train_on_batch(reader, optimizer, generator)
        if batch % EVERY == 0:
            measured.append(accuracy(reader, MOST_PAIRS, lists_seed=1))
            schedule.step(measured[-1])
            if optimizer.param_groups[0]["lr"] < SMALLEST_RATE:
                break
    return measured


def train_with_cosine(reader: Reader, seed: int, batches: int) -> list[float]:
    """Train for exactly `batches` batches; the learning rate falls along a cosine to 0."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(reader.parameters(), lr=0.01)
    schedule = CosineAnnealingLR(optimizer, batches)
    measured = []
    for batch in range(1, batches + 1):
        train_on_batch(reader, optimizer, generator)
        schedule.step()
        if batch % EVERY == 0:
            measured.append(accuracy(reader, MOST_PAIRS, lists_seed=1))
    return measured


@torch.no_grad()
def accuracy(reader: Reader, num_pairs: int, *, count: int = 500, lists_seed: int = 2) -> float:
    """The fraction of right answers on new lists: seed 1 for validation, seed 2 for tests.

    Training has seeds of the same values, but reads the random numbers in another order: no list of
    12 pairs of its first 200 batches is among these. Nearly all lists of 1 or 2 pairs are.
    """
    *given, answers = lists(count, num_pairs, torch.Generator().manual_seed(lists_seed))
    return (reader(*given).argmax(-1) == answers).double().mean().item()
