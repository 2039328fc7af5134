"""Choose a number, and see what each word of its translation looked at."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import torch

from ...bounds import PositiveInt
from ...data import BOS, EOS, PAD, Vocabulary, pad
from ...data.number_words import english_words, german_words
from ...errors import argument_error
from ...generation.decoding_state import Seq2SeqState
from ...generation.generate import generate
from ...models.transformer import Transformer
from ...shapes import checked
from .page import PagePicture, details

END = "end"  # how the end of a sentence is shown
# A weight is rounded to hundredths, and a character stands for each of 0.00 to 1.00: all of them
# safe in HTML, JSON and JavaScript. The rarer ones of two bytes stand in the middle.
LEVELS = (
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏefghijklmnopqrstuvwxyz"
    "!#$%()*+,-.:;=?@[]^_{}~"
)
RUNS = "&'/`"  # 2, 3, 4 or 5 times 0.00, as most weights are
SIZES = {"width": 360, "box": 126, "tall": 32, "pitch": 42, "top": 24}
MAX_WORDS = 8  # of English, the end included


@dataclass(frozen=True)
class Look:
    """What a model said to a number, and the weight of each German word for each English one.

    Shapes: weights (L, S). The last of the words read is END, and of those said unless it went on.
    """

    number: int
    read: tuple[str, ...]
    said: tuple[str, ...]
    weights: np.ndarray

    @property
    def expected(self) -> tuple[str, ...]:
        """The right words, END included."""
        return (*english_words(self.number), END)

    @property
    def levels(self) -> np.ndarray:
        """The weights in whole hundredths."""
        return np.rint(100 * self.weights).astype(int)


@checked
def look_at_numbers(
    model: Transformer, source: Vocabulary, target: Vocabulary, numbers: Iterable[int]
) -> list[Look]:
    """Translate numbers in one batch, word after word, and keep where the model looked.

    Row i holds the weights that the last decoder layer gave to the German words when word i was
    chosen, the mean of its heads. Computed in float64: rounded, it is the same on every machine.

    Raises: TypeError or ValueError for a number that is none.
    Source: Bahdanau et al. 2015, figure 3.
    """
    numbers = list(numbers)
    exact = copy.deepcopy(model).double().eval()
    german = [german_words(number) for number in numbers]
    if not numbers:
        raise argument_error(ValueError, "numbers", "none", "at least one number")
    ids = pad([[*source.encode(words), EOS] for words in german])
    start = torch.full((len(numbers), 1), BOS)
    said = generate(Seq2SeqState(exact, ids), start, max_new=MAX_WORDS).tokens  # B L
    with torch.no_grad():
        told = torch.cat([start, said[:, :-1]], dim=1)
        _, weights = exact(ids, told, return_weights=True)
    mean = weights.cross[-1].mean(1).numpy()  # B L S
    looks = []
    for number, words, row, grid in zip(numbers, german, said, mean, strict=True):
        spoken = tuple(END if n == EOS else target.words[n] for n in row.tolist() if n != PAD)
        read = (*words, END)
        looks.append(Look(number, read, spoken, grid[: len(spoken), : len(read)]))
    return looks


class NumberPicture(PagePicture):
    """The picture as HTML for a page, and as a table for a terminal."""

    styles, script = ("page", "numbers"), "numbers"

    def __init__(
        self, looks: list[Look], shown: Collection[int], start: int, examples: Sequence[int]
    ) -> None:
        self.looks, self.shown, self.start, self.examples = looks, set(shown), start, examples

    @property
    def first(self) -> Look:
        """What stands there before anything is chosen."""
        return self.looks[self.start - 1]

    @property
    def data(self) -> dict[str, Any]:
        """What the script gets: word lists, and a record of characters for each number."""
        german = sorted({word for look in self.looks for word in look.read})
        english = {word for look in self.looks for word in (*look.said, *look.expected)}
        words = [german, sorted(english)]
        for names in words:
            if len(names) > len(LEVELS):
                raise argument_error(ValueError, "words", len(names), f"at most {len(LEVELS)}")
        return {
            "german": words[0], "english": words[1], "end": END, "levels": LEVELS, "runs": RUNS,
            "sizes": SIZES,
            "start": self.start, "fade": "tt-look-fade",
            "numbers": "|".join(self._record(look, *words) for look in self.looks),
        }  # fmt: skip

    def _record(self, look: Look, german: list[str], english: list[str]) -> str:
        """+ for a number shown in training; German, English, weights; the right words if others."""
        parts = [
            ("+" if look.number in self.shown else "-") + coded(look.read, german),
            coded(look.said, english),
            shortened("".join(LEVELS[level] for level in look.levels.flat)),
        ]
        if look.said != look.expected:
            parts.append(coded(look.expected[:-1], english))
        return " ".join(parts)

    @property
    def parts(self) -> list[str]:
        """The controls, the picture of the first number, its words and its table."""
        look = self.first
        return [
            controls(self.start, len(self.looks), self.examples),
            f'<p class="tt-headline"><strong>{look.number}</strong>'
            f'<span lang="de">{escape(written(look))}</span></p>',
            f'<p class="tt-verdict" aria-live="polite">{escape(self.verdict(look))}</p>',
            f'<p class="tt-training">{escape(self.training(look))}</p>',
            f'<div class="tt-picture">{still(look)}</div>',
            f'<p class="tt-words" aria-live="polite">{escape(sentences(look))}</p>',
            details("The weights as a table", table(look)),
        ]

    @checked
    def verdict(self, look: Look) -> str:
        """What the model said, and whether it is right."""
        said = " ".join(word for word in look.said if word != END)
        if look.said == look.expected:
            return f"It says “{said}” ✓ right"
        return f"It says “{said}” ✗ wrong, it should be “{' '.join(look.expected[:-1])}”"

    @checked
    def training(self, look: Look) -> str:
        """Whether the model had been shown the number."""
        return (
            f"It was {'' if look.number in self.shown else 'never '}shown this number in training."
        )

    def __repr__(self) -> str:
        look = self.first
        width = max(map(len, (*look.read, *look.said))) + 2
        rows = [["", *look.read]]
        rows += [
            [word, *(f"{level / 100:.2f}" for level in levels)]
            for word, levels in zip(look.said, look.levels, strict=True)
        ]
        lines = ["".join(f"{cell:>{width}}" for cell in row) for row in rows]
        head = f"NumberPicture(1 to {len(self.looks)}), showing {look.number}, {written(look)}."
        return "\n".join([head, self.verdict(look), self.training(look), *lines])


@checked
def number_picture(
    looks: Iterable[Look],
    *,
    shown: Collection[int] = (),
    start: PositiveInt = 24,
    examples: Sequence[PositiveInt] = (24, 42, 34, 13, 203, 302, 999),
) -> NumberPicture:
    """Make the picture in which a reader chooses a number, from the looks at 1, 2, 3 and so on.

    shown: the numbers that the model was trained on. start: the number that is shown first.

    Raises: TypeError or ValueError for looks that are none, or are not those of 1, 2, 3 and so on,
        and for a start or example that is not among them.
    """
    looks = list(looks)
    numbers = [look.number for look in looks]
    if not looks or numbers != list(range(1, len(looks) + 1)):
        came = f"{len(numbers)} numbers" + (f" from {numbers[0]}" if numbers else "")
        raise argument_error(ValueError, "looks", came, "all numbers from 1, in order")
    for name, number in (("start", start), *(("examples", number) for number in examples)):
        if number > len(looks):
            raise argument_error(ValueError, name, number, f"a number from 1 to {len(looks)}")
    return NumberPicture(looks, shown, start, examples)


def coded(words: Iterable[str], names: list[str]) -> str:
    """A character for each word: that of its place in the list."""
    return "".join(LEVELS[names.index(word)] for word in words)


def shortened(levels: str) -> str:
    """Put one character in place of several zeros."""
    for length, mark in reversed(list(enumerate(RUNS, start=2))):
        levels = levels.replace(length * "0", mark)
    return levels


def written(look: Look) -> str:
    """The German number as one word."""
    return "".join(german_words(look.number, segmentation="coarse"))


def sentences(look: Look) -> str:
    """What each word said looked at most, in words."""
    parts = []
    for word, row in zip(look.said, look.levels, strict=True):
        most = int(row.argmax())
        parts.append(
            f"{called(word)} looks most at {called(look.read[most])} ({row[most] / 100:.2f})"
        )
    return "; ".join(parts) + "."


def called(word: str) -> str:
    """A word as it is called in a sentence."""
    return "the end sign" if word == END else word


def controls(start: int, last: int, examples: Sequence[int]) -> str:
    """The field, the slider and the examples; hidden until the script is there."""
    buttons = [f'<button type="button" value="{number}">{number}</button>' for number in examples]
    return "\n".join(
        [
            '<div class="tt-controls" hidden>',
            f'<label>A number, 1 to {last}<input class="tt-number" type="text" inputmode="numeric" '
            f'autocomplete="off" value="{start}"></label>',
            f'<label>or slide<input class="tt-slider" type="range" min="1" max="{last}" '
            f'value="{start}"></label>',
            '<p class="tt-problem" role="alert"></p>',
            '<div class="tt-examples" role="group" aria-label="Examples">',
            *buttons,
            '<button type="button" value="0">random</button></div></div>',
        ]
    )


def table(look: Look) -> str:
    """The weights as a table: a row for each word said, a column for each word read."""
    head = "".join(f'<th scope="col" lang="de">{escape(word)}</th>' for word in look.read)
    rows = []
    for word, levels in zip(look.said, look.levels, strict=True):
        cells = "".join(f"<td>{level / 100:.2f}</td>" for level in levels)
        rows.append(f'<tr><th scope="row">{escape(word)}</th>{cells}</tr>')
    return f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def still(look: Look) -> str:
    """The drawing for a page without scripts: words in two columns, lines as strong as weights."""
    width, box, tall, pitch, top = SIZES.values()
    height = top + pitch * max(len(look.read), len(look.said))
    right, bend = width - box - 1, (width - 2 * box) / 2

    def middle(row: int) -> float:
        return top + row * pitch + tall / 2

    def part(word: str, row: int, x: int, kind: str) -> str:
        sign = " tt-sign" if word == END else ""
        return (
            f'<g class="tt-{kind}{sign}"><rect x="{x}" y="{middle(row) - tall / 2:g}" '
            f'width="{box}" height="{tall}" rx="6"/>'
            f'<text x="{x + 12}" y="{middle(row) + 5:g}">{escape(word)}</text></g>'
        )

    def link(level: int, i: int, j: int) -> str:
        left, y, to = box + 1, middle(j), middle(i)
        path = f"M{left} {y:g}C{left + bend:g} {y:g} {right - bend:g} {to:g} {right} {to:g}"
        return (
            f'<path d="{path}" stroke="var(--tt-query)" stroke-width="{1 + level * 0.08:.1f}" '
            f'opacity="{0.15 + level * 0.0085:.2f}"/>'
        )

    links = [link(w, i, j) for (i, j), w in np.ndenumerate(look.levels) if w >= 2]
    return "".join(
        [
            f'<svg class="tt-drawing" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{look.number}: {escape(sentences(look))}">',
            '<text class="tt-head" x="1" y="14">it reads</text>'
            f'<text class="tt-head" x="{right}" y="14">it says</text>',
            f'<g class="tt-links">{"".join(links)}</g>',
            *(part(word, j, 1, "read") for j, word in enumerate(look.read)),
            *(part(word, i, right, "said") for i, word in enumerate(look.said)),
            "</svg>",
        ]
    )
