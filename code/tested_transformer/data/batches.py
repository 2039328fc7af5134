"""Batches for training: sentences of like length together, so that little of a batch is padding."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated

from jaxtyping import Int
from torch import Tensor

from ..bounds import AtLeast, Device, NonNegativeInt, PositiveInt
from ..shapes import check_fields, checked
from ..special_tokens import BOS, EOS, PAD, pad
from .pairs import Pair, Pairs
from .vocabulary import Vocabulary

__all__ = ["Batch", "make_batch", "make_batches"]


@dataclass(frozen=True)
class Batch:
    """What the decoder reads and what it should say, one place apart: teacher forcing.

    Shapes: source (B, S), target and expected (B, L); target starts with BOS, expected ends with EOS.
    """

    source: Annotated[Int[Tensor, "B S"], AtLeast(0)]
    target: Annotated[Int[Tensor, "B L"], AtLeast(0)]
    expected: Annotated[Int[Tensor, "B L"], AtLeast(0)]

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def num_tokens(self) -> int:
        """How many words are to be said: padding does not count."""
        return int((self.expected != PAD).sum())

    @checked
    def to(self, device: Device) -> Batch:
        """The same batch on another device."""
        return Batch(*(t.to(device) for t in (self.source, self.target, self.expected)))


@checked
def make_batch(pairs: Pairs, source: Vocabulary, target: Vocabulary) -> Batch:
    """Some pairs as one batch.

    Raises: TypeError or ValueError that name the argument.
    """
    said = [target.encode(pair.target) for pair in pairs]
    return Batch(
        pad([[*source.encode(pair.source), EOS] for pair in pairs]),
        pad([[BOS, *words] for words in said]),
        pad([[*words, EOS] for words in said]),
    )


@checked
def make_batches(
    pairs: Pairs,
    source: Vocabulary,
    target: Vocabulary,
    *,
    batch_size: PositiveInt = 64,
    seed: NonNegativeInt = 0,
    bucket: PositiveInt = 50,
) -> list[Batch]:
    """All pairs once, shuffled by the seed, in batches of like length.

    `bucket` batches are drawn at a time and their pairs sorted by length before they are cut into
    batches, which are then shuffled: like lengths stay together and the order stays random.

    Raises: TypeError or ValueError that name the argument.
    """
    rng = random.Random(seed)
    shuffled = rng.sample(pairs, len(pairs))
    groups: list[list[Pair]] = []
    for start in range(0, len(shuffled), batch_size * bucket):
        near = sorted(shuffled[start : start + batch_size * bucket], key=_size)
        groups += [near[i : i + batch_size] for i in range(0, len(near), batch_size)]
    rng.shuffle(groups)
    return [make_batch(group, source, target) for group in groups]


def _size(pair: Pair) -> tuple[int, int]:
    return len(pair.source), len(pair.target)
