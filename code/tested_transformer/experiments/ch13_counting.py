"""A language that counts on: "twenty three , twenty four , ...", and a small GPT-2 or Llama for it (chapter 13)."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from ..data.number_words import ENGLISH_TENS, ENGLISH_UNITS, LARGEST, english_words
from ..data.vocabulary import Vocabulary
from ..models.language_model import LanguageModelConfig
from ..training.losses import cross_entropy, next_token_loss

LENGTH = 48  # tokens of a sequence in training
SEPARATOR = ","
GPT2 = {
    "d_model": 64, "num_heads": 4, "num_layers": 2, "dropout": 0.0, "activation": "gelu_tanh",
    "norm_placement": "pre", "positions": "learned", "scale_embedding": False, "pad_id": None,
}  # fmt: skip
LINES = {
    "RMSNorm": {"norm": "rms"},
    "rotary positions": {
        "positions": "rotary", "position_layout": "halves", "max_length": None,
    },
    "SwiGLU": {"activation": "swiglu", "d_ff": 171},  # 3 x 171 and 2 x 256 hidden features
    "GQA": {"num_kv_heads": 2},
    "no biases": {"bias": False},
}  # fmt: skip
LLAMA = {option: value for line in LINES.values() for option, value in line.items()}
FOUR_OF_FIVE = {  # Llama with one line as in GPT-2
    f"Llama without {left_out}": {
        option: value
        for name, line in LINES.items() if name != left_out
        for option, value in line.items()
    }
    for left_out in LINES
}  # fmt: skip


def counting_vocabulary() -> Vocabulary:
    """All words of the language, in the order of their IDs."""
    words = [*filter(None, ENGLISH_UNITS + ENGLISH_TENS), "hundred", "and", "thousand"]
    return Vocabulary([*words, SEPARATOR])


def counting_words(first: int, count: int) -> list[str]:
    """The words of `count` numbers from `first` on, with a comma after each.

    >>> " ".join(counting_words(29, 2))
    'twenty nine , thirty ,'
    """
    return [word for n in range(first, first + count) for word in (*english_words(n), SEPARATOR)]


def counting_batch(
    count: int, length: int, rng: torch.Generator, words: Vocabulary
) -> Int[Tensor, "B L"]:
    """Sequences that count on from a random number, cut after `length` tokens.

    A number has one to six digits, each number of digits with the same probability; the lengths of
    numbers in words differ, and so do the positions of the commas.
    """
    exponents = torch.rand(count, generator=rng, dtype=torch.float64)
    rows = []
    for first in (10 ** (6 * exponents)).long().clamp(1, LARGEST - length).tolist():
        rows.append(words.encode(counting_words(first, length // 2))[:length])
    return torch.tensor(rows)


def counting_config(**changes: Any) -> LanguageModelConfig:
    """A GPT-2 of two layers, or what the changes make of it."""
    return LanguageModelConfig(
        len(counting_vocabulary()), **{"max_length": LENGTH} | GPT2 | changes
    )


def train_counting(
    model: nn.Module, seed: int, steps: int, *, lr: float = 0.003, loss: Any = next_token_loss
) -> list[float]:
    """Train with Adam on 32 new sequences in every step; return the losses.

    The learning rate rises to `lr` in the first 30 % of the steps and falls to 0 by a cosine.
    """
    words, rng = counting_vocabulary(), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
    losses = []
    for _ in range(steps):
        ids = counting_batch(32, LENGTH, rng, words)  # B L
        value = loss(model(ids), ids)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        schedule.step()
        losses.append(value.item())
    return losses


def unseen_sequences(count: int, seed: int, steps: int) -> Int[Tensor, "B L"]:
    """Test sequences, drawn as in training, that a training with this seed has not seen.

    Half of the numbers that sequences begin with are below a thousand, so training sees most of these.
    """
    words, rng = counting_vocabulary(), torch.Generator().manual_seed(seed)
    seen = {
        tuple(row) for _ in range(steps) for row in counting_batch(32, LENGTH, rng, words).tolist()
    }
    rng, rows = torch.Generator().manual_seed(1000), []
    while len(rows) < count:
        drawn = counting_batch(count, LENGTH, rng, words).tolist()
        rows += [row for row in drawn if tuple(row) not in seen]
    return torch.tensor(rows[:count])


@torch.no_grad()
def measure_counting(
    model: nn.Module, length: int = LENGTH, *, ids: Int[Tensor, "B L"] | None = None
) -> tuple[float, float]:
    """The loss per token after the first comma, and the share of whole numbers that are right.

    Without ids on 500 sequences, of which a training has seen more than half.

    The number that a sequence begins with cannot be known and does not count. A number is right if the
    most probable token is the true one at each of its tokens and at its comma: that is when greedy
    decoding from the text before it generates the number.
    """
    words = counting_vocabulary()
    (comma,) = words.encode([SEPARATOR])
    if ids is None:
        ids = counting_batch(500, length, torch.Generator().manual_seed(1000), words)
    logits, targets = model(ids[:, :-1]), ids[:, 1:]
    index = (ids == comma).cumsum(1)[:, :-1]  # commas before a target: which number it belongs to
    labels = targets.masked_fill(index == 0, -1)
    loss = cross_entropy(logits, labels, ignore=-1).item()
    right = number_right(logits.argmax(-1) == targets, index, targets == comma)
    return loss, right


def number_right(
    right: Bool[Tensor, "B L"], index: Int[Tensor, "B L"], is_comma: Bool[Tensor, "B L"]
) -> float:
    """The share of whole numbers, after the first, all of whose tokens are right."""
    numbers = index.max() + 1
    per_number = torch.zeros(2, len(index), int(numbers), dtype=torch.long)
    per_number[0].scatter_add_(1, index, (~right).long())  # wrong tokens of each number
    per_number[1].scatter_add_(
        1, index, is_comma.long()
    )  # 1 for a number that ends in the sequence
    whole = per_number[1, :, 1:] == 1
    return (per_number[0, :, 1:][whole] == 0).double().mean().item()
