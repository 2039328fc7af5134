"""A small language in which every probability is known: English numbers, as often as people say them.

People say small numbers more often than large ones. Here each power of ten is equally likely, and so
is each ratio: 1 to 2 as 100 to 200 (Benford's law). The probability of any word after any prefix
is then a sum of logarithms, so that what a language model has learned can be compared with the truth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_model
from torch import Tensor

from ..bounds import AtLeast, AtMost, PositiveInt
from ..data import BOS, EOS, Vocabulary, pad
from ..data.number_words import ENGLISH_TENS, ENGLISH_UNITS, LARGEST, english_words
from ..errors import argument_error
from ..models.language_model import LanguageModel, LanguageModelConfig
from ..shapes import checked

SHIPPED = Path(__file__).parents[1] / "data" / "trained" / "spoken_numbers" / "model.safetensors"
END = "<eos>"
VALUES = {word: n for n, word in enumerate(ENGLISH_UNITS) if word}
VALUES |= {word: 10 * n for n, word in enumerate(ENGLISH_TENS) if word}
NEVER = -1e4  # the logit of a word that cannot come


def spoken_vocabulary() -> Vocabulary:
    """All words of the language, in the order of their IDs."""
    return Vocabulary([*filter(None, ENGLISH_UNITS + ENGLISH_TENS), "hundred", "and", "thousand"])


@checked
def chance(first: PositiveInt, last: Annotated[int, AtLeast("first"), AtMost(LARGEST)]) -> float:
    """The probability that a number lies between first and last, both included.

    Raises: TypeError or ValueError that name the argument.
    Source: Benford 1938.

    >>> round(chance(1, 1), 4), round(chance(10, 99), 4)
    (0.0502, 0.1667)
    """
    return math.log10((last + 1) / first) / 6


@checked
def sample_numbers(count: PositiveInt, generator: torch.Generator) -> list[int]:
    """Numbers as the language says them: 10^u, u uniform between 0 and 6, rounded down.

    Raises: TypeError or ValueError that name the argument.
    Source: Benford 1938.
    """
    exponents = torch.rand(count, generator=generator, dtype=torch.float64)
    return (10 ** (6 * exponents)).long().clamp(1, LARGEST).tolist()


def true_chances(beginning: Sequence[str] = ()) -> dict[str, float]:
    """The probability of each word after a prefix, END among them, the most probable first.

    Raises: ValueError if no number begins so.
    Source: chapter 11.

    >>> {word: round(p, 4) for word, p in true_chances(["one"]).items()}
    {'hundred': 0.5, '<eos>': 0.25, 'thousand': 0.25}
    """
    beginning, found = list(beginning), {}
    length = len(beginning)
    for thousands in range(1000):
        head = [*english_words(thousands), "thousand"] if thousands else []
        if head[:length] != beginning[: len(head)]:
            continue
        if length < len(head):  # all thousand numbers go on with the same word
            spans = [(1000 * thousands, 1000 * thousands + 999)]
        else:
            spans = [(n, n) for n in range(max(1000 * thousands, 1), 1000 * thousands + 1000)]
        for span in spans:
            words = [*(head if length < len(head) else english_words(span[0])), END]
            if words[:length] == beginning and length < len(words):
                found[words[length]] = found.get(words[length], 0.0) + chance(*span)
    total = sum(found.values())
    if not total:
        raise argument_error(ValueError, "beginning", " ".join(beginning), "how a number begins")
    return {word: p / total for word, p in sorted(found.items(), key=lambda item: -item[1])}


def number_of(words: Sequence[str]) -> int | None:
    """The number that the words name, or None if they name none.

    >>> number_of(["twenty", "one"]), number_of(["one", "twenty"])
    (21, None)
    """
    thousands = rest = 0
    for word in words:
        if word == "thousand":
            thousands, rest = rest, 0
        elif word == "hundred":
            rest *= 100
        elif word in VALUES:
            rest += VALUES[word]
    number = 1000 * thousands + rest
    return number if 1 <= number <= LARGEST and english_words(number) == list(words) else None


def spoken_batch(
    numbers: Sequence[int], words: Vocabulary
) -> tuple[Int[Tensor, "B L"], Int[Tensor, "B L"]]:
    """What the model reads, from BOS on, and its targets, up to EOS.

    Source: chapter 10.
    """
    ids = [words.encode(english_words(number)) for number in numbers]
    return pad([[BOS, *row] for row in ids]), pad([[*row, EOS] for row in ids])


class ExactModel:
    """A decoding state without a model: a function gives the distribution after each prefix.

    chances: a list of words -> the probability of each next word. Where it raises ValueError, because
    no number has that prefix, the sentence ends.

    Source: chapter 11.
    """

    def __init__(
        self, chances: Callable[[list[str]], Mapping[str, float]], words: Vocabulary
    ) -> None:
        self.chances, self.words = chances, words
        self.prefix_ids: Tensor | None = None

    def feed(self, tokens: Int[Tensor, "B L"]) -> Float[Tensor, "B V"]:
        """Take the next tokens; return the log-probabilities of the token after the last."""
        self.prefix_ids = (
            tokens if self.prefix_ids is None else torch.cat([self.prefix_ids, tokens], dim=1)
        )
        scores = torch.full((len(tokens), len(self.words)), NEVER)
        for row, ids in zip(scores, self.prefix_ids.tolist(), strict=True):
            try:
                found = self.chances([self.words.words[word] for word in ids if word != BOS])
            except ValueError:
                found = {END: 1.0}
            row[self.words.encode(list(found))] = torch.tensor(list(found.values())).log()
        return scores

    def reorder(self, rows: Int[Tensor, " N"]) -> None:
        """Keep these sequences, in this order."""
        self.prefix_ids = self.prefix_ids[rows]


def new_spoken_model() -> LanguageModel:
    """An untrained language model of the size that is shipped."""
    return LanguageModel(
        LanguageModelConfig(
            len(spoken_vocabulary()), d_model=48, num_heads=4, num_layers=2, dropout=0.0,
            norm_placement="pre",
        )
    )  # fmt: skip


def load_spoken_model() -> tuple[LanguageModel, Vocabulary]:
    """The trained model that comes with the package, in eval mode, and its words.

    tools/train_spoken_numbers.py made it.

    Source: chapter 11.
    """
    model = new_spoken_model()
    load_model(model, SHIPPED)
    return model.eval(), spoken_vocabulary()
