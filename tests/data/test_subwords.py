"""Characters and byte-pair encoding: nothing is lost, nothing is left to chance."""

import itertools
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tested_transformer.data import Pair, number_pair, number_rows, single_numbers
from tested_transformer.data.number_words import german_words
from tested_transformer.data.subwords import (
    SPACE,
    UNKNOWN,
    Subwords,
    characters,
    join_pieces,
    resegment,
    written_words,
)

WORDS = [written_words(pair.source) for pair in number_rows(train=300, test=0).train]
PIECES = Subwords.train(WORDS, 80)
ANY_WORD = st.text(min_size=1, max_size=8).filter(lambda w: w.split() == [w] and SPACE not in w)


def test_written_words_are_the_coarse_parts_joined():
    for number in range(1, 1_000_000, 997):
        wanted = "".join(german_words(number, segmentation="coarse"))
        assert written_words(german_words(number)) == (wanted,)


def test_written_words_of_rows():
    words = written_words(number_pair([24, 1, 301]).source)
    assert words == ("vierundzwanzig", ",", "eins", ",", "dreihunderteins")
    assert written_words(()) == ()
    assert written_words((",", "elf", ",")) == (",", "elf", ",")


@given(st.lists(st.integers(1, 999_999), min_size=1, max_size=4))
def test_pieces_of_numbers_joined_are_the_words(numbers):
    words = written_words(number_pair(numbers).source)
    for pieces in (characters(words), PIECES.split(words)):
        assert join_pieces(pieces) == words


@given(st.lists(st.integers(1, 999_999), min_size=1, max_size=4))
def test_against_the_tokens_and_the_decoder_of_tokenizers(numbers):
    words = written_words(number_pair(numbers).source)
    theirs = PIECES.tokenizer.encode(" ".join(words))
    assert list(PIECES.split(words)) == theirs.tokens
    ids = [PIECES.tokenizer.token_to_id(piece) for piece in PIECES.split(words)]
    assert PIECES.tokenizer.decode(ids) == " ".join(words)


@given(st.lists(ANY_WORD, max_size=5))
def test_any_words_come_back(words):
    """Unknown characters too: each stays a piece by itself."""
    assert join_pieces(PIECES.split(words)) == tuple(words)
    assert join_pieces(characters(words)) == tuple(words)


def test_unknown_characters():
    assert PIECES.split(["ÿund☃"]) == ("ÿ", "und", "☃")
    assert PIECES.split(["é"]) == ("é",)


def slow_merges(words, size):
    """The algorithm of the paper, counted anew for each merge; ties go to the earlier pieces."""
    segmentation = [list(SPACE.join(sentence)) for sentence in words]
    parts = []
    for sentence in segmentation:
        text = "".join(sentence)
        starts = [0, *(i for i, letter in enumerate(text) if letter == SPACE), len(text)]
        parts += [list(text[a:b]) for a, b in itertools.pairwise(starts) if a < b]
    number = {letter: n for n, letter in enumerate(sorted({c for part in parts for c in part}))}
    merges = []
    while len(number) < size:
        counts = {}
        for part in parts:
            for pair in itertools.pairwise(part):
                counts[pair] = counts.get(pair, 0) + 1
        if not counts:
            break
        best = min(counts, key=lambda p: (-counts[p], number[p[0]], number[p[1]]))
        merges.append(best)
        number.setdefault("".join(best), len(number))
        for part in parts:
            at = 0
            while at < len(part) - 1:
                if (part[at], part[at + 1]) == best:
                    part[at : at + 2] = ["".join(best)]
                at += 1
    return merges


@pytest.mark.parametrize("size", [25, 40, 80])
def test_merges_are_those_of_counting(size):
    assert Subwords.train(WORDS, size).merges == slow_merges(WORDS, size)


def test_size_counts_the_pieces():
    assert len(PIECES) == 80
    alphabet = set("".join(characters(["".join(s) for s in WORDS]))) | {SPACE}
    assert len(alphabet) + len(PIECES.merges) == 80
    letters = Subwords.train(WORDS, len(alphabet))
    assert letters.merges == []
    assert letters.split(WORDS[0]) == characters(WORDS[0])


def test_a_larger_size_never_gives_more_pieces():
    cuts = [Subwords.train(WORDS, size) for size in (25, 50, 200)]
    counts = [sum(len(segmentation.split(words)) for words in WORDS) for segmentation in cuts]
    assert counts == sorted(counts, reverse=True)


def test_training_ends_when_nothing_is_left_to_merge():
    segmentation = Subwords.train([["neun"], ["neun", "zig"]], 500)
    assert segmentation.split(["neun", "zig"]) == ("neun", f"{SPACE}zig")
    assert len(segmentation) < 500


def test_training_is_repeatable_in_another_process():
    script = (
        "from tested_transformer.data import number_rows\n"
        "from tested_transformer.data.subwords import Subwords, written_words\n"
        "words = [written_words(p.source) for p in number_rows(train=300, test=0).train]\n"
        "print(Subwords.train(words, 80).merges)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(PIECES.merges)


def test_pieces_stay_within_words():
    for words in WORDS:
        assert all(SPACE not in piece[1:] for piece in PIECES.split(words))


def test_nothing_and_nonsense():
    assert PIECES.split([]) == characters([]) == join_pieces([]) == ()
    assert join_pieces([SPACE, SPACE, "elf", SPACE]) == ("elf",)
    assert PIECES.split([UNKNOWN]) == (UNKNOWN,)


def test_recut_leaves_the_other_side_alone():
    pairs = single_numbers(train=20, test=0).train
    assert resegment(pairs) == pairs
    both = resegment(pairs, source=characters, target=lambda words: words[::-1])
    assert both[0] == Pair(characters(pairs[0].source), pairs[0].target[::-1])
    assert resegment([], source=characters) == []


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: PIECES.split("elf"), TypeError, "words: expected a sequence of strings, got str"),
        (lambda: PIECES.split([11]), TypeError, r"words\[0\]: expected a string, got int"),
        (lambda: PIECES.split([""]), ValueError, r"words\[0\]: expected a word that is not empty"),
        (
            lambda: characters(["elf zig"]),
            ValueError,
            r"words\[0\]: expected a word .* got 'elf zig'",
        ),
        (lambda: characters([f"elf{SPACE}"]), ValueError, r"words\[0\]: expected a word that is"),
        (
            lambda: written_words("elf"),
            TypeError,
            "morphemes: expected a sequence of strings, got str",
        ),
        (lambda: Subwords.train([], 80), ValueError, "sentences: expected at least one word"),
        (lambda: Subwords.train([[]], 80), ValueError, "sentences: expected at least one word"),
        (
            lambda: Subwords.train(["elf"], 80),
            TypeError,
            r"sentences\[0\]: expected a sequence of strings, got str",
        ),
        (lambda: Subwords.train([["elf"]], 2), ValueError, "size: expected at least 3, one a"),
        (lambda: Subwords.train([["elf"]], 8.0), TypeError, "size: expected an int"),
        (lambda: Subwords("elf"), TypeError, "tokenizer: expected a Tokenizer"),
    ],
)
def test_bad_calls(make, kind, message):
    with pytest.raises(kind, match=message):
        make()
