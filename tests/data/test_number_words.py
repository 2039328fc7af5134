"""Number words against num2words, whose German is mended where it is wrong."""

import random

import pytest

from tested_transformer import english_words, german_words

NUMBERS = [
    *range(1, 1201), *(1000 * k + r for k in (1, 2, 17, 21, 99, 100, 101, 301, 999) for r in (0, 1, 21, 100, 999)),
    *random.Random(0).sample(range(1, 1_000_000), 1000),
]  # fmt: skip


def test_against_num2words():
    num2words = pytest.importorskip("num2words").num2words
    for number in NUMBERS:
        german = num2words(number, lang="de")
        german = german.replace("hunderteinstausend", "hunderteintausend")  # as Germans write it
        assert "".join(german_words(number, segmentation="coarse")) == german
        english = num2words(number).replace(",", "").replace("-", " ")
        assert " ".join(english_words(number)) == english


@pytest.mark.parametrize(
    ("number", "coarse", "fine"),
    [
        (1, "eins", "ein"),
        (12, "zwölf", "zwölf"),
        (16, "sechzehn", "sech zehn"),
        (24, "vier und zwanzig", "vier und zwanzig"),
        (43, "drei und vierzig", "drei und vier zig"),
        (70, "siebzig", "sieb zig"),
        (101, "ein hundert eins", "ein hundert ein"),
        (203, "zwei hundert drei", "zwei hundert drei"),
        (1000, "ein tausend", "ein tausend"),
        (301_017, "drei hundert ein tausend siebzehn", "drei hundert ein tausend sieb zehn"),
    ],
)
def test_cuts(number, coarse, fine):
    assert " ".join(german_words(number, segmentation="coarse")) == coarse
    assert " ".join(german_words(number)) == fine


def test_a_word_belongs_to_one_number():
    for segmentation in ("fine", "coarse"):
        words = {
            tuple(german_words(number, segmentation=segmentation)) for number in range(1, 20_000)
        }
        assert len(words) == 19_999
    assert len({tuple(english_words(number)) for number in range(1, 20_000)}) == 19_999


@pytest.mark.plain_types
@pytest.mark.parametrize("words", [german_words, english_words])
@pytest.mark.parametrize(
    ("number", "error", "expected"),
    [
        (0, ValueError, "at least 1"),
        (1_000_000, ValueError, "at most 999999"),
        (2.0, TypeError, "an int"),
        (True, TypeError, "an int"),
    ],
)
def test_malformed_numbers(words, number, error, expected):
    with pytest.raises(error, match=expected):
        words(number)


@pytest.mark.plain_types
def test_malformed_cut():
    with pytest.raises(ValueError, match="'thin'"):
        german_words(3, segmentation="thin")
