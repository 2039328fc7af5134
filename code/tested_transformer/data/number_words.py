"""Number words, the thread of the book: vierundzwanzig, twenty-four, from 1 to 999,999."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal

from ..bounds import AtLeast, AtMost
from ..shapes import checked

__all__ = ["english_words", "german_words"]

LARGEST = 999_999
UNITS = ["", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
TENS = ["", "zehn", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig",
        "neunzig"]  # fmt: skip
ENGLISH_UNITS = ["", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
                 "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen",
                 "eighteen", "nineteen"]  # fmt: skip
ENGLISH_TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty",
                "ninety"]  # fmt: skip
Segmentation = Literal["fine", "coarse"]
Number = Annotated[int, AtLeast(1), AtMost(LARGEST)]
SHORT = {"sechs": "sech", "sieben": "sieb"}  # before zehn: sechzehn, siebzehn


@checked
def german_words(number: Number, *, segmentation: Segmentation = "fine") -> list[str]:
    """The German number word, split into morphemes.

    segmentation: "coarse" keeps teens, tens and the final eins whole, and its morphemes joined are the
    written word. "fine" splits what returns elsewhere (drei zehn, vier zig) and writes eins as ein. zwanzig
    and dreißig stay whole: zwan and ßig occur nowhere else.

    Raises: TypeError for what is no int; ValueError outside 1 ... 999,999 and for another segmentation.
    Source: chapter 1.

    >>> german_words(324), german_words(43), german_words(43, segmentation="coarse")
    (['drei', 'hundert', 'vier', 'und', 'zwanzig'], ['drei', 'und', 'vier', 'zig'], ['drei', 'und', 'vierzig'])
    """
    thousands, rest = divmod(number, 1000)
    words = [*_german(thousands, segmentation), "tausend"] if thousands else []
    words += _german(rest, segmentation)
    if segmentation == "coarse" and words[-1] == "ein":
        words[-1] = "eins"
    return words


@cache
def _german(number: int, segmentation: str) -> tuple[str, ...]:
    """The parts of 0 to 999; 0 has none."""
    hundreds, rest = divmod(number, 100)
    words = (UNITS[hundreds], "hundert") if hundreds else ()
    tens, unit = divmod(rest, 10)
    if rest in (11, 12):
        return (*words, "elf" if rest == 11 else "zwölf")
    if tens == 1 and unit:
        teen = (SHORT.get(UNITS[unit], UNITS[unit]), "zehn")
        return (*words, *(teen if segmentation == "fine" else ["".join(teen)]))
    if unit:
        words += (UNITS[unit], "und") if tens else (UNITS[unit],)
    if segmentation == "fine" and tens > 3:
        return (*words, TENS[tens].removesuffix("zig"), "zig")
    return (*words, TENS[tens]) if tens else words


@checked
def english_words(number: Number) -> list[str]:
    """The English number word as words: no hyphens, no commas, "and" after hundreds.

    Raises: TypeError for what is no int; ValueError outside 1 ... 999,999.
    Source: chapter 1.

    >>> english_words(324)
    ['three', 'hundred', 'and', 'twenty', 'four']
    """
    thousands, rest = divmod(number, 1000)
    words = [*_english(thousands), "thousand"] if thousands else []
    if thousands and 0 < rest < 100:
        words.append("and")
    return [*words, *_english(rest)]


@cache
def _english(number: int) -> tuple[str, ...]:
    """The words of 0 to 999; 0 has none."""
    hundreds, rest = divmod(number, 100)
    words = (ENGLISH_UNITS[hundreds], "hundred") if hundreds else ()
    words += ("and",) if hundreds and rest else ()
    if rest < 20:
        return (*words, ENGLISH_UNITS[rest]) if rest else words
    tens, unit = divmod(rest, 10)
    return (*words, ENGLISH_TENS[tens], *([ENGLISH_UNITS[unit]] if unit else []))
