"""Sentence pairs: German and English number words, or a file of the reader's own."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from ..bounds import AtLeast, AtMost, NonNegativeInt, PositiveInt, Seed, Text, Where
from ..errors import argument_error
from ..shapes import checked
from .number_words import LARGEST, Number, english_words, german_words

__all__ = ["Pair", "Split", "number_pair", "number_rows", "read_pairs", "single_numbers"]

SEPARATOR = ","


class Pair(NamedTuple):
    """A sentence and its translation, as words."""

    source: tuple[str, ...]
    target: tuple[str, ...]


Pairs = Annotated[Sequence[Pair], Where("at least one pair", len)]


@dataclass(frozen=True)
class Split:
    """Pairs to learn from and pairs never seen in training."""

    train: list[Pair]
    test: list[Pair]


@checked
def single_numbers(
    *, train: PositiveInt = 20_000, test: NonNegativeInt = 2_000, seed: Seed = 0
) -> Split:
    """Numbers from 1 to 999,999 in German and English words, every number at most once.

    Raises: TypeError or ValueError for counts that are none, or that together exceed the numbers.
    """
    numbers = range(1, LARGEST + 1)
    if train + test > LARGEST:
        raise argument_error(ValueError, "train + test", train + test, f"at most {LARGEST}")
    chosen = random.Random(seed).sample(numbers, train + test)
    pairs = [number_pair([number]) for number in chosen]
    return Split(pairs[:train], pairs[train:])


@checked
def number_rows(
    *,
    train: PositiveInt = 20_000,
    test: NonNegativeInt = 2_000,
    least: PositiveInt = 1,
    most: Annotated[int, AtLeast("least"), AtMost(100)] = 8,
    seed: Seed = 0,
) -> Split:
    """Rows of `least` to `most` numbers below a thousand, set apart by commas; no row comes twice.

    Every length is as likely as any other, as far as there are rows of it.

    Raises: TypeError or ValueError for counts that are none, or more rows than there are.
    """
    rows_in_all = sum(999**length for length in range(least, most + 1))
    if train + test > rows_in_all:
        raise argument_error(ValueError, "train + test", train + test, f"at most {rows_in_all}")
    rng, rows = random.Random(seed), {}
    while len(rows) < train + test:  # a dict keeps the order, so the seed fixes it
        rows[tuple(rng.choices(range(1, 1000), k=rng.randint(least, most)))] = None
    pairs = [number_pair(list(row)) for row in rows]
    return Split(pairs[:train], pairs[train:])


@checked
def number_pair(numbers: Sequence[Number]) -> Pair:
    """One row of numbers, in German and in English.

    >>> number_pair([24, 7]).source
    ('vier', 'und', 'zwanzig', ',', 'sieben')
    """
    return Pair(_row(numbers, german_words), _row(numbers, english_words))


def _row(numbers: Sequence[int], words: Callable[[int], list[str]]) -> tuple[str, ...]:
    row: list[str] = []
    for number in numbers:
        row += [SEPARATOR, *words(number)] if row else words(number)
    return tuple(row)


@checked
def read_pairs(path: str | Path, *, separator: Text = "\t") -> list[Pair]:
    """Sentence pairs from a text file: one pair a line, source and target in two columns.

    Words are what stands between spaces. The file is UTF-8, with or without a byte order mark.

    Raises: FileNotFoundError if there is no such file; ValueError that names the line for a line that
        is empty, has another number of columns or an empty column, or is no UTF-8; ValueError for a
        file without lines.
    """
    data = Path(path).read_bytes().removeprefix(b"\xef\xbb\xbf")
    lines = data.removesuffix(b"\n").split(b"\n")
    if lines == [b""]:
        raise argument_error(ValueError, str(path), "an empty file", "one pair of sentences a line")
    return [_pair(f"{path}, line {n}", line, separator) for n, line in enumerate(lines, start=1)]


def _pair(place: str, line: bytes, separator: str) -> Pair:
    try:
        text = line.decode("utf-8").rstrip("\r")
    except UnicodeDecodeError as error:
        came = f"byte 0x{line[error.start]:02x} at column {error.start + 1}"
        raise argument_error(ValueError, place, came, "UTF-8 text") from None
    wanted = f"two columns with {separator!r} between them"
    if not text.strip():
        raise argument_error(ValueError, place, "an empty line", wanted)
    columns = text.split(separator)
    if len(columns) != 2:
        raise argument_error(ValueError, place, f"{len(columns)} columns", wanted)
    source, target = (tuple(column.split()) for column in columns)
    if not source or not target:
        came = "no words in the " + ("first" if not source else "second") + " column"
        raise argument_error(ValueError, place, came, wanted)
    return Pair(source, target)
