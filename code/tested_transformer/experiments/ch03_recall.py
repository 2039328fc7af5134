"""Associative recall: a list pairs words with digits, and one word is looked up (chapter 3)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

NUM_WORDS, NUM_PAIRS, D_MODEL = 40, 10, 64


def recall_lists(
    count: int, rng: torch.Generator
) -> tuple[Int[Tensor, "B S"], Int[Tensor, "B S"], Int[Tensor, "B 1"], Int[Tensor, " B"]]:
    """Sample lists of 10 different words of 40 with a random digit each, a word asked for, its digit.

    Shapes: words (B, S), digits (B, S), asked (B, 1), answers (B), with B = count and S = 10.
    """
    words = torch.rand(count, NUM_WORDS, generator=rng).argsort(-1)[:, :NUM_PAIRS]  # B S
    digits = torch.randint(10, words.shape, generator=rng)  # B S
    place = torch.randint(NUM_PAIRS, (count, 1), generator=rng)
    return words, digits, words.gather(1, place), digits.gather(1, place).squeeze(1)


class Recall(nn.Module):
    """Attend from the word asked for to the words of a list; the values are their digits, one-hot.

    W_Q and W_K are initialized so that queries and keys have unit variance.
    """

    def __init__(self, d_head: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.words = nn.Embedding(NUM_WORDS, D_MODEL)
        self.query = nn.Linear(D_MODEL, d_head, bias=False)
        self.key = nn.Linear(D_MODEL, d_head, bias=False)
        self.output = nn.Linear(10, 10)
        for layer in (self.query, self.key):
            nn.init.normal_(layer.weight, std=D_MODEL**-0.5)

    def weights(self, words: Int[Tensor, "B S"], asked: Int[Tensor, "B 1"]) -> Float[Tensor, "B S"]:
        """The attention weights: each word's query and key are computed once."""
        query, key = self.query(self.words.weight), self.key(self.words.weight)  # 40 d
        scores = query @ key.mT * self.scale  # 40 40
        return scores[asked, words].softmax(-1)

    def forward(
        self, words: Int[Tensor, "B S"], digits: Int[Tensor, "B S"], asked: Int[Tensor, "B 1"]
    ) -> Float[Tensor, "B 10"]:
        """Logits of the ten digits."""
        weights = self.weights(words, asked).unsqueeze(1)  # B 1 S
        return self.output((weights @ one_hot(digits, 10).to(weights.dtype)).squeeze(1))


def train_recall(
    model: Recall,
    seed: int,
    steps: int,
    *,
    lr: float,
    projection_lr: float | None = None,
    embedding_lr: float | None = None,
    every: int = 50,
) -> dict[str, list[float]]:
    """Train with Adam on new lists of every step; every `every` steps: accuracy on 1,000 test lists, top weight.

    The top weight is the median over the test lists of the largest attention weight. W_Q and W_K have the
    learning rate projection_lr and the embeddings embedding_lr, if they are given.
    """
    rng = torch.Generator().manual_seed(seed)
    words, digits, asked, answers = recall_lists(1000, torch.Generator().manual_seed(1000))
    projections = [*model.query.parameters(), *model.key.parameters()]
    groups = [
        {"params": projections, "lr": projection_lr or lr},
        {"params": model.words.parameters(), "lr": embedding_lr or lr},
        {"params": model.output.parameters()},
    ]
    optimizer = torch.optim.Adam(groups, lr=lr)
    history: dict[str, list[float]] = {"accuracy": [], "top_weight": []}
    for step in range(steps + 1):
        if step % every == 0:
            with torch.no_grad():
                right = model(words, digits, asked).argmax(-1) == answers
                top = model.weights(words, asked).amax(-1).median()
            history["accuracy"].append(right.double().mean().item())
            history["top_weight"].append(top.item())
        *lists, targets = recall_lists(64, rng)
        loss = cross_entropy(model(*lists), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return history
