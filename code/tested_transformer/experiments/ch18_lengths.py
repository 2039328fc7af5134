"""Trained on sequences of 20 tokens, tested on 40 and 80: small decoders that differ in their positions alone (chapter 18)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache as remember
from itertools import pairwise

import torch
from jaxtyping import Int
from torch import Tensor, nn

from ..models.language_model import LanguageModel, LanguageModelConfig
from ..positions.protocol import PositionScheme
from ..positions.rotary import RotaryPositions
from ..positions.scaled_rotary import LinearScaling, ScaledRotaryPositions, YarnScaling
from ..positions.t5_buckets import T5Positions
from ..positions.xpos import XPos
from ..training.losses import cross_entropy
from .ch13_counting import SEPARATOR, counting_vocabulary, counting_words

TRAINED, LONGEST = 20, 80  # tokens of a sequence in training, and of the longest test
LENGTHS = (TRAINED, 40, LONGEST)
LETTERS, DIGITS, ASKED_OF = 16, 10, 4  # the latest digit: of four in a sequence of letters
HEADS, D_HEAD = 4, 16
STEPS, RATE = 400, 0.01
IGNORED = -1
CONFIG = {
    "d_model": HEADS * D_HEAD, "num_heads": HEADS, "num_layers": 2, "dropout": 0.0, "activation": "gelu_tanh",
    "norm_placement": "pre", "scale_embedding": False, "pad_id": None, "max_length": LONGEST,
}  # fmt: skip


# --- Two tasks ------------------------------------------------------------------------------------


@remember
def counting_sequences() -> Int[Tensor, "N L"]:
    """Every sequence that counts on from a number in 1 to 940, as 80 tokens; the first 20 are for training."""
    words = counting_vocabulary()
    return torch.tensor([words.encode(counting_words(n, LONGEST))[:LONGEST] for n in range(1, 941)])


def counting_sample(count: int, length: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences, and which tokens are to be predicted: all after the first number.

    Shapes: ids (B, L), labels (B, L): the token itself, or IGNORED.
    """
    sequences = counting_sequences()
    ids = sequences[torch.randint(len(sequences), (count,), generator=rng), :length]
    (comma,) = counting_vocabulary().encode([SEPARATOR])
    known = (ids == comma).cumsum(1) - (ids == comma).int() > 0  # after the first comma
    return ids, ids.masked_fill(~known, IGNORED)


def latest_sample(count: int, length: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences of random letters with four digits among them, a question mark, and the latest of the digits.

    Shapes: ids (B, L), labels (B, L): the answer in the last column, IGNORED elsewhere.
    """
    ids = torch.randint(LETTERS, (count, length), generator=rng)
    digits = torch.randint(LETTERS, LETTERS + DIGITS, (count, ASKED_OF), generator=rng)
    spots = torch.rand(count, length - 2, generator=rng).argsort(-1)[:, :ASKED_OF]  # no two equal
    ids.scatter_(1, spots, digits)
    answer = digits.gather(1, spots.argmax(-1, keepdim=True))  # B 1
    ids[:, -2], ids[:, -1:] = LETTERS + DIGITS, answer
    labels = torch.full_like(ids, IGNORED)
    labels[:, -1:] = answer
    return ids, labels


def counted_right(logits: Tensor, ids: Tensor, labels: Tensor) -> float:
    """The share of whole numbers in the last half of the sequences all of whose tokens, comma included, are right.

    Shapes: logits (B, L - 1, V), of the next token, ids and labels (B, L).
    """
    (comma,) = counting_vocabulary().encode([SEPARATOR])
    right, half = logits.argmax(-1) == ids[:, 1:], ids.shape[1] // 2
    numbers = []
    for row, is_right in zip(ids.tolist(), right.tolist(), strict=True):
        ends = [i for i, token in enumerate(row) if token == comma]
        for before, end in pairwise(ends):
            if before + 1 >= half:
                numbers.append(all(is_right[before:end]))
    return sum(numbers) / len(numbers)


def latest_right(logits: Tensor, ids: Tensor, labels: Tensor) -> float:
    """The share of sequences whose latest digit is named. Shapes: as of `counted_right`."""
    return (logits[:, -1].argmax(-1) == ids[:, -1]).double().mean().item()


TASKS: dict[str, tuple[Callable, Callable, int]] = {
    "counting": (counting_sample, counted_right, len(counting_vocabulary())),
    "latest": (latest_sample, latest_right, LETTERS + DIGITS + 1),
}  # sample, measure, size of the vocabulary


# --- Schemes --------------------------------------------------------------------------------------

IN_ATTENTION: dict[str, Callable[[], PositionScheme]] = {
    "rotary": lambda: RotaryPositions(D_HEAD),
    "xPos": lambda: XPos(D_HEAD, scale_base=TRAINED / 2),  # 512 for texts of 1,024 in the paper
    "T5 buckets": lambda: T5Positions(
        HEADS, num_buckets=16, max_distance=TRAINED, bidirectional=False
    ),
}
SCHEMES = ("learned", "sinusoidal", "none", "ALiBi", *IN_ATTENTION)


def scheme_model(scheme: str, vocab_size: int) -> LanguageModel:
    """A decoder of two layers whose positions are those of a name in SCHEMES."""
    positions = "none" if scheme in IN_ATTENTION else scheme.lower()
    model = LanguageModel(LanguageModelConfig(vocab_size, positions=positions, **CONFIG))
    if scheme in IN_ATTENTION:
        use_scheme(model, IN_ATTENTION[scheme]())
    return model


def use_scheme(model: LanguageModel, scheme: PositionScheme) -> None:
    """Let one scheme act in the attention of every layer."""
    for layer in model.layers:
        layer.attention.positions = scheme


def rotary_for(length: int) -> dict[str, PositionScheme]:
    """What a model trained with rotary positions can use for a longer sequence, without training."""
    factor = max(length / TRAINED, 1.0)
    return {
        "rotary": RotaryPositions(D_HEAD),
        "rotary, interpolated": ScaledRotaryPositions(D_HEAD, LinearScaling(factor)),
        "rotary, NTK": RotaryPositions(D_HEAD, base=10000.0 * factor ** (D_HEAD / (D_HEAD - 2))),
        "rotary, YaRN": ScaledRotaryPositions(D_HEAD, YarnScaling(factor, TRAINED)),
    }


# --- Training and measuring -----------------------------------------------------------------------


def train_lengths(task: str, scheme: str, seed: int, *, steps: int = STEPS) -> LanguageModel:
    """A decoder of two layers, trained on sequences of 20 tokens with Adam, 32 new ones in every step."""
    sample, _, vocab_size = TASKS[task]
    torch.manual_seed(seed)
    model, rng = scheme_model(scheme, vocab_size), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    for _ in range(steps):
        ids, labels = sample(32, TRAINED, rng)
        loss = cross_entropy(model(ids[:, :-1]), labels[:, 1:], ignore=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def measure_lengths(model: nn.Module, task: str, lengths: tuple[int, ...] = LENGTHS) -> list[float]:
    """The share of right answers in the last half of 500 sequences of each length."""
    sample, measure, *_ = TASKS[task]
    shares = []
    for length in lengths:
        ids, labels = sample(500, length, torch.Generator().manual_seed(1000 + length))
        shares.append(measure(model(ids[:, :-1]), ids, labels))
    return shares


def measure_schemes(model: LanguageModel, task: str, scheme: str) -> dict[str, list[float]]:
    """`measure_lengths` of a trained model; where it is rotary, for each of `rotary_for`, too."""
    if scheme != "rotary":
        return {scheme: measure_lengths(model, task)}
    shares: dict[str, list[float]] = {name: [] for name in rotary_for(TRAINED)}
    for length in LENGTHS:
        for name, positions in rotary_for(length).items():
            use_scheme(model, positions)
            shares[name] += measure_lengths(model, task, (length,))
    use_scheme(model, RotaryPositions(D_HEAD))
    return shares
