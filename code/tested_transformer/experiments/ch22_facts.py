"""New names for numbers: facts that a model looks up in a database, or learns by its weights (chapter 22)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from ..data.number_words import german_words
from ..layers.chunk_database import ChunkDatabase
from ..models.retro import Retro, RetroConfig
from . import ch12_masked

TRAINED = Path(__file__).parents[1] / "data" / "trained"  # by tools/train_retrieval.py
KEY_MODEL, FACT_MODEL = TRAINED / "number_keys", TRAINED / "number_facts"
CHUNK, NEIGHBORS = 8, 1
NUMBERS = range(1, 1000)
SYLLABLES = [first + second for first in "bdfgkl" for second in "aeiou"]
SPECIAL = ["[PAD]", "·"]  # · fills a chunk
FILL = 1
FRAME = ["die", "wie", "zahl", "heißt", "?", "."]
WORDS = (
    SPECIAL + FRAME + SYLLABLES
    + sorted({word for n in NUMBERS for word in german_words(n, segmentation="coarse")})
)  # fmt: skip
TOKEN_ID = {word: number for number, word in enumerate(WORDS)}
FIRST = TOKEN_ID[SYLLABLES[0]]


# --- Facts ----------------------------------------------------------------------------------------


def chunk(words: list[str], *, left: bool) -> Int[Tensor, " 8"]:
    """The token IDs of a chunk, filled up on the left or on the right."""
    ids = [TOKEN_ID[word] for word in words]
    fill = [FILL] * (CHUNK - len(ids))
    return torch.tensor(fill + ids if left else ids + fill)


def text_of(ids: Tensor) -> str:
    """Words, without what fills the chunks."""
    return " ".join(WORDS[i] for i in ids.tolist() if i not in (0, FILL))


QUESTIONS = torch.stack(
    [
        chunk(["wie", "heißt", *german_words(n, segmentation="coarse"), "?"], left=True)
        for n in NUMBERS
    ]
)  # 999 8: row n - 1 asks for n
STATEMENTS = torch.stack(
    [
        chunk(["die", "zahl", *german_words(n, segmentation="coarse"), "heißt"], left=True)
        for n in NUMBERS
    ]
)  # 999 8


def new_names(seed: int) -> Int[Tensor, "999 8"]:
    """For each number a name of three random syllables, as the chunk that answers the question."""
    rng = torch.Generator().manual_seed(seed)
    syllables = FIRST + torch.randint(len(SYLLABLES), (len(NUMBERS), 3), generator=rng)
    end = torch.tensor([TOKEN_ID["."]] + [FILL] * (CHUNK - 4)).expand(len(NUMBERS), -1)
    return torch.cat((syllables, end), 1)


def split_numbers() -> tuple[Int[Tensor, "700"], Int[Tensor, "299"]]:
    """Rows of the numbers with facts in training, and of those whose facts come later."""
    order = torch.randperm(len(NUMBERS), generator=torch.Generator().manual_seed(0))
    return order[:700], order[700:]


# --- Keys -----------------------------------------------------------------------------------------


def train_key_model(seed: int = 0, steps: int = 600) -> ch12_masked.Bert:
    """Chapter 12's encoder, trained so that a question is nearest to the statement of its number among 128.

    Only the numbers of training are used.
    """
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    bert = ch12_masked.Bert(len(WORDS), CHUNK)
    rows, encode = split_numbers()[0], keys_by(bert)

    def loss() -> Tensor:
        batch = rows[torch.randperm(len(rows), generator=rng)[:128]]
        questions, statements = encode(QUESTIONS[batch]), encode(STATEMENTS[batch])
        distances = torch.cdist(questions, statements).square()  # 128 128
        return functional.cross_entropy(-distances, torch.arange(128))

    ch12_masked.train(bert, loss, steps, lr=2e-3)
    return bert.eval().requires_grad_(False)


def load_key_model() -> ch12_masked.Bert:
    """The frozen encoder that ships with the package."""
    model = ch12_masked.Bert(len(WORDS), CHUNK)
    model.load_state_dict(load_file(KEY_MODEL / "model.safetensors"))
    return model.eval().requires_grad_(False)


def keys_by(bert: ch12_masked.Bert) -> Callable[[Tensor], Float[Tensor, "N d"]]:
    """Chunks (N, 8) -> keys (N, d): the mean of the encoder's vectors."""
    everything = torch.ones(1, 1, 1, CHUNK, dtype=torch.bool)
    return lambda chunks: bert(chunks, everything).mean(1)


def word_counts(chunks: Int[Tensor, "N m"]) -> Float[Tensor, "N V"]:
    """Keys that know no order: how often each token occurs."""
    return functional.one_hot(chunks, len(WORDS)).sum(1).float()


# --- Tables of neighbors --------------------------------------------------------------------------


class Facts:
    """Names, the rows of the numbers whose facts stand in the database, and the neighbors of every chunk."""

    def __init__(self, names: Tensor, known: Tensor, encode: Callable[[Tensor], Tensor]) -> None:
        self.names = names
        documents = list(torch.cat((STATEMENTS, names), 1)[known])
        self.database = ChunkDatabase(documents, encode, chunk_size=CHUNK)
        self.of_question, self.of_name = (
            self.database.search(chunks, num_neighbors=NEIGHBORS) for chunks in (QUESTIONS, names)
        )  # 999 k 16

    def batch(
        self, rows: Int[Tensor, "B 2"]
    ) -> tuple[Int[Tensor, "B 32"], Int[Tensor, "B 4 k 16"]]:
        """For each pair of numbers: question, name, question, name, and the neighbors of the four."""
        ids = torch.stack((QUESTIONS[rows], self.names[rows]), 2)  # B 2 2 8
        neighbors = torch.stack((self.of_question[rows], self.of_name[rows]), 2)  # B 2 2 k 16
        return ids.flatten(1), neighbors.flatten(1, 2)


ANSWERS = torch.tensor(
    [[7, 8, 9], [23, 24, 25]]
)  # positions that predict the syllables of the two names


def predicted_names(
    model: Retro, ids: Tensor, neighbors: Tensor | None
) -> Float[Tensor, "B 2 3 V"]:
    """Logits of the two names' syllables."""
    return model(ids, neighbors)[:, ANSWERS]


# --- Models ---------------------------------------------------------------------------------------

MODELS = {
    "small, with retrieval": {"d_model": 32, "num_layers": 2},
    "small, without": {"d_model": 32, "num_layers": 2, "num_retrieval_layers": 0},
    "larger, without": {"d_model": 96, "num_layers": 3, "num_retrieval_layers": 0},
}
STEPS, BATCH = 600, 64
RATES = {"small, with retrieval": 1e-2, "small, without": 1e-2, "larger, without": 2e-3}


def build(name: str, seed: int) -> Retro:
    """An untrained model."""
    torch.manual_seed(seed)
    return Retro(
        RetroConfig(vocab_size=len(WORDS), chunk_size=CHUNK, max_length=32, **MODELS[name])
    )


def load_fact_model() -> Retro:
    """The first "small, with retrieval" of the benchmark, which ships with the package."""
    model = build("small, with retrieval", 0)
    model.load_state_dict(load_file(FACT_MODEL / "model.safetensors"))
    return model.eval().requires_grad_(False)


def sample_rows(rows: Tensor, count: int, rng: torch.Generator) -> Int[Tensor, "B 2"]:
    """Pairs of different numbers."""
    return rows[torch.rand(count, len(rows), generator=rng).argsort(-1)[:, :2]]


def train(model: Retro, facts: Facts, rows: Tensor, seed: int, *, steps: int, rate: float) -> None:
    """Adam on the names alone: the loss of their syllables, after their questions."""
    rng = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    for _ in range(steps):
        ids, neighbors = facts.batch(sample_rows(rows, BATCH, rng))
        logits = predicted_names(model, ids, neighbors)
        loss = functional.cross_entropy(logits.flatten(0, 2), ids[:, ANSWERS + 1].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


@torch.no_grad()
def right_names(model: Retro, facts: Facts, rows: Tensor, *, others: bool = False) -> float:
    """Share of numbers whose three syllables are all predicted, asked in pairs.

    others: with the neighbors of other numbers, as if the search had failed.
    """
    ids, neighbors = facts.batch(torch.stack((rows, rows.roll(1)), 1))
    neighbors = neighbors.roll(5, 0) if others else neighbors
    logits = predicted_names(model, ids, neighbors)
    return (logits.argmax(-1) == ids[:, ANSWERS + 1]).all(-1).float().mean().item()


def fact_sets() -> dict[str, tuple[Facts, Tensor]]:
    """What each model is trained on, and three tests: its facts and the numbers that are asked for."""
    encode, (known, later) = keys_by(load_key_model()), split_numbers()
    names = new_names(1)
    return {
        "facts of training": (Facts(names, known, encode), known),
        "facts added later": (Facts(names, torch.arange(len(NUMBERS)), encode), later),
        "facts changed later": (Facts(new_names(2), known, encode), known),
    }
