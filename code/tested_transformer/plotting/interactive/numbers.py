"""Choose a number, and see which German tokens each English token attends to."""

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

END = "EOS"  # how the end of a sequence is shown
# A weight is rounded to hundredths, and a character stands for each of 0.00 to 1.00: all of them
# safe in HTML, JSON and JavaScript. The rarer ones of two bytes stand in the middle.
LEVELS = (
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏefghijklmnopqrstuvwxyz"
    "!#$%()*+,-.:;=?@[]^_{}~"
)
RUNS = "&'/`"  # 2, 3, 4 or 5 times 0.00, as most weights are
SIZES = {"width": 360, "box": 126, "tall": 32, "pitch": 42, "top": 24}
MAX_TOKENS = 8  # of English, EOS included


@dataclass(frozen=True)
class NumberTranslation:
    """A model's translation of a number, with the cross-attention weights of each English token.

    Shapes: weights (L, S). The last source token is END, and the last generated one unless the
        model went on.
    """

    number: int
    source: tuple[str, ...]
    generated: tuple[str, ...]
    weights: np.ndarray

    @property
    def expected(self) -> tuple[str, ...]:
        """The correct tokens, END included."""
        return (*english_words(self.number), END)

    @property
    def levels(self) -> np.ndarray:
        """The weights in whole hundredths."""
        return np.rint(100 * self.weights).astype(int)


@checked
def translate_numbers(
    model: Transformer, source: Vocabulary, target: Vocabulary, numbers: Iterable[int]
) -> list[NumberTranslation]:
    """Translate numbers in one batch, greedily, and return the cross-attention weights.

    Row i holds the weights of the last decoder layer over the German tokens when token i was
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
    output = generate(Seq2SeqState(exact, ids), start, max_new=MAX_TOKENS).tokens  # B L
    with torch.no_grad():
        decoder_input = torch.cat([start, output[:, :-1]], dim=1)
        _, weights = exact(ids, decoder_input, return_weights=True)
    mean = weights.cross[-1].mean(1).numpy()  # B L S
    translations = []
    for number, words, row, grid in zip(numbers, german, output, mean, strict=True):
        generated = tuple(END if n == EOS else target.words[n] for n in row.tolist() if n != PAD)
        read = (*words, END)
        kept = grid[: len(generated), : len(read)]
        translations.append(NumberTranslation(number, read, generated, kept))
    return translations


class NumberPicture(PagePicture):
    """The picture as HTML for a page, and as a table for a terminal."""

    styles, script = ("page", "numbers"), "numbers"

    def __init__(
        self,
        translations: list[NumberTranslation],
        shown: Collection[int],
        start: int,
        examples: Sequence[int],
    ) -> None:
        self.translations, self.shown, self.start, self.examples = (
            translations,
            set(shown),
            start,
            examples,
        )

    @property
    def first(self) -> NumberTranslation:
        """The number that is shown before the reader chooses one."""
        return self.translations[self.start - 1]

    @property
    def data(self) -> dict[str, Any]:
        """What the script gets: token lists, and a record of characters for each number."""
        german = sorted({word for translation in self.translations for word in translation.source})
        english = {
            word
            for translation in self.translations
            for word in (*translation.generated, *translation.expected)
        }
        words = [german, sorted(english)]
        for names in words:
            if len(names) > len(LEVELS):
                raise argument_error(ValueError, "words", len(names), f"at most {len(LEVELS)}")
        return {
            "german": words[0], "english": words[1], "end": END, "levels": LEVELS, "runs": RUNS,
            "sizes": SIZES,
            "start": self.start, "fade": "tt-look-fade",
            "numbers": "|".join(self._record(translation, *words) for translation in self.translations),
        }  # fmt: skip

    def _record(self, translation: NumberTranslation, german: list[str], english: list[str]) -> str:
        """+ for a number shown in training; German, English, weights; the right words if others."""
        parts = [
            ("+" if translation.number in self.shown else "-") + coded(translation.source, german),
            coded(translation.generated, english),
            shortened("".join(LEVELS[level] for level in translation.levels.flat)),
        ]
        if translation.generated != translation.expected:
            parts.append(coded(translation.expected[:-1], english))
        return " ".join(parts)

    @property
    def parts(self) -> list[str]:
        """The controls, the picture of the first number, its words and its table."""
        translation = self.first
        return [
            controls(self.start, len(self.translations), self.examples),
            f'<p class="tt-headline"><strong>{translation.number}</strong>'
            f'<span lang="de">{escape(written(translation))}</span></p>',
            f'<p class="tt-verdict" aria-live="polite">{escape(self.verdict(translation))}</p>',
            f'<p class="tt-training">{escape(self.training(translation))}</p>',
            f'<div class="tt-picture">{still(translation)}</div>',
            f'<p class="tt-words" aria-live="polite">{escape(sentences(translation))}</p>',
            details("Attention weights as a table", table(translation)),
        ]

    @checked
    def verdict(self, translation: NumberTranslation) -> str:
        """The output of the model, and whether it is right."""
        output = " ".join(word for word in translation.generated if word != END)
        if translation.generated == translation.expected:
            return f"Output: “{output}” ✓ right"
        return f"Output: “{output}” ✗ wrong, it should be “{' '.join(translation.expected[:-1])}”"

    @checked
    def training(self, translation: NumberTranslation) -> str:
        """Whether the number was in the training set."""
        if translation.number in self.shown:
            return "This number was in the training set."
        return "This number was held out of training."

    def __repr__(self) -> str:
        translation = self.first
        width = max(map(len, (*translation.source, *translation.generated))) + 2
        rows = [["", *translation.source]]
        rows += [
            [word, *(f"{level / 100:.2f}" for level in levels)]
            for word, levels in zip(translation.generated, translation.levels, strict=True)
        ]
        lines = ["".join(f"{cell:>{width}}" for cell in row) for row in rows]
        head = f"NumberPicture(1 to {len(self.translations)}), showing {translation.number}, {written(translation)}."
        return "\n".join([head, self.verdict(translation), self.training(translation), *lines])


@checked
def number_picture(
    translations: Iterable[NumberTranslation],
    *,
    shown: Collection[int] = (),
    start: PositiveInt = 24,
    examples: Sequence[PositiveInt] = (24, 42, 34, 13, 203, 302, 999),
) -> NumberPicture:
    """Make the figure in which a reader chooses a number, from the translations of 1, 2, 3 and so on.

    shown: the numbers that the model was trained on. start: the number that is shown first.

    Raises: TypeError or ValueError for translations that are none, or are not those of 1, 2, 3 and
        so on, and for a start or example that is not among them.
    """
    translations = list(translations)
    numbers = [translation.number for translation in translations]
    if not translations or numbers != list(range(1, len(translations) + 1)):
        came = f"{len(numbers)} numbers" + (f" from {numbers[0]}" if numbers else "")
        raise argument_error(ValueError, "translations", came, "all numbers from 1, in order")
    for name, number in (("start", start), *(("examples", number) for number in examples)):
        if number > len(translations):
            raise argument_error(
                ValueError, name, number, f"a number from 1 to {len(translations)}"
            )
    return NumberPicture(translations, shown, start, examples)


def coded(words: Iterable[str], names: list[str]) -> str:
    """A character for each token: that of its index in the list."""
    return "".join(LEVELS[names.index(word)] for word in words)


def shortened(levels: str) -> str:
    """Put one character in place of several zeros."""
    for length, mark in reversed(list(enumerate(RUNS, start=2))):
        levels = levels.replace(length * "0", mark)
    return levels


def written(translation: NumberTranslation) -> str:
    """The German number as one word."""
    return "".join(german_words(translation.number, segmentation="coarse"))


def sentences(translation: NumberTranslation) -> str:
    """The largest attention weight of each generated token, in words."""
    parts = []
    for word, row in zip(translation.generated, translation.levels, strict=True):
        most = int(row.argmax())
        parts.append(f"{word} attends most to {translation.source[most]} ({row[most] / 100:.2f})")
    return "; ".join(parts) + "."


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


def table(translation: NumberTranslation) -> str:
    """The weights as a table: a row for each generated token, a column for each source token."""
    head = "".join(f'<th scope="col" lang="de">{escape(word)}</th>' for word in translation.source)
    rows = []
    for word, levels in zip(translation.generated, translation.levels, strict=True):
        cells = "".join(f"<td>{level / 100:.2f}</td>" for level in levels)
        rows.append(f'<tr><th scope="row">{escape(word)}</th>{cells}</tr>')
    return f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def still(translation: NumberTranslation) -> str:
    """The drawing for a page without scripts: tokens in two columns, lines as strong as weights."""
    width, box, tall, pitch, top = SIZES.values()
    height = top + pitch * max(len(translation.source), len(translation.generated))
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

    links = [link(w, i, j) for (i, j), w in np.ndenumerate(translation.levels) if w >= 2]
    return "".join(
        [
            f'<svg class="tt-drawing" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{translation.number}: {escape(sentences(translation))}">',
            '<text class="tt-head" x="1" y="14">German, input</text>'
            f'<text class="tt-head" x="{right}" y="14">English, output</text>',
            f'<g class="tt-links">{"".join(links)}</g>',
            *(part(word, j, 1, "read") for j, word in enumerate(translation.source)),
            *(part(word, i, right, "said") for i, word in enumerate(translation.generated)),
            "</svg>",
        ]
    )
