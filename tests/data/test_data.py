"""Sentence pairs, vocabularies and batches."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tested_transformer.data import (
    BOS,
    EOS,
    PAD,
    UNK,
    Vocabulary,
    lengths,
    make_batch,
    make_batches,
    number_pair,
    number_rows,
    pad,
    read_pairs,
    single_numbers,
)


def test_single_numbers_are_disjoint_and_repeatable():
    split = single_numbers(train=3000, test=500, seed=4)
    assert len(split.train) == 3000
    assert len(split.test) == 500
    assert len({pair.target for pair in (*split.train, *split.test)}) == 3500
    assert single_numbers(train=3000, test=500, seed=4) == split
    assert single_numbers(train=3000, test=500, seed=5).train != split.train


def test_rows_have_every_length_and_none_twice():
    split = number_rows(train=4000, test=800, seed=1)
    sizes = [pair.source.count(",") + 1 for pair in (*split.train, *split.test)]
    assert set(sizes) == set(range(1, 9))
    assert min(sizes.count(size) for size in range(2, 9)) > 450
    assert len({pair.source for pair in (*split.train, *split.test)}) == 4800
    assert all(p.source.count(",") == p.target.count(",") for p in split.train)


def test_all_rows_of_one_number_can_be_asked_for():
    split = number_rows(train=900, test=99, least=1, most=1)
    assert len({pair.target for pair in (*split.train, *split.test)}) == 999


def test_a_pair_in_words():
    pair = number_pair([24, 300])
    assert pair.source == ("vier", "und", "zwanzig", ",", "drei", "hundert")
    assert pair.target == ("twenty", "four", ",", "three", "hundred")


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: single_numbers(train=0), "train: expected at least 1, got 0"),
        (lambda: single_numbers(train=999_999, test=1), "train \\+ test: expected at most 999999"),
        (lambda: number_rows(train=900, test=100, most=1), "train \\+ test: expected at most 999"),
        (
            lambda: number_rows(least=3, most=2),
            "most: expected at least least = 3 and at most 100, got 2",
        ),
        (lambda: number_pair([1_000_000]), r"numbers\[0\]: expected at least 1 and at most 999999"),
    ],
)
def test_counts_that_are_none(make, message):
    with pytest.raises(ValueError, match=message):
        make()


WORDS = st.lists(st.text("abcd", min_size=1, max_size=3), max_size=6)


@given(st.lists(WORDS, min_size=1, max_size=5))
def test_words_survive_the_way_to_numbers_and_back(sentences):
    words = Vocabulary.of(sentences)
    for sentence in sentences:
        assert words.decode([BOS, *words.encode(sentence), EOS, PAD]) == sentence


def test_rare_and_unknown_words():
    words = Vocabulary.of([["a", "b"], ["a"]], least=2)
    assert "a" in words
    assert "b" not in words
    assert words.encode(["b", "a"]) == [UNK, 4]
    assert words.decode(torch.tensor([UNK, 4, EOS, 4])) == ["<unk>", "a"]


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: Vocabulary(["a", "a"]), ValueError, "a new word that is not empty, got 'a'"),
        (lambda: Vocabulary(["<pad>"]), ValueError, "got '<pad>'"),
        (lambda: Vocabulary([""]), ValueError, "not empty, got ''"),
        (lambda: Vocabulary([3]), TypeError, r"words\[0\]: expected a string, got int"),
        (lambda: Vocabulary(["a"]).encode("a a"), TypeError, "sentence: expected a sequence"),
        (lambda: Vocabulary(["a"]).decode([5]), ValueError, "numbers from 0 to 4, got 5"),
    ],
)
def test_bad_words(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_padding_on_either_side():
    assert pad([[5, 6], [7], []]).tolist() == [[5, 6], [7, 0], [0, 0]]
    assert pad([[5, 6], [7]], left=True).tolist() == [[5, 6], [0, 7]]
    assert lengths(pad([[5, 6], [7], []])).tolist() == [2, 1, 0]
    assert pad([]).shape == (0, 0)


def vocabularies(pairs):
    return Vocabulary.of(p.source for p in pairs), Vocabulary.of(p.target for p in pairs)


def test_the_target_is_one_place_ahead():
    pairs = [number_pair([24]), number_pair([7])]
    source, target = vocabularies(pairs)
    batch = make_batch(pairs, source, target)
    assert batch.target[:, 0].tolist() == [BOS, BOS]
    assert torch.equal(batch.target[0, 1:], batch.expected[0, :-1])
    assert target.decode(batch.expected[0]) == ["twenty", "four"]
    assert source.decode(batch.source[1]) == ["sieben"]
    assert batch.num_tokens == 5  # twenty four <eos> seven <eos>


def test_batches_hold_every_pair_once_with_little_padding():
    pairs = number_rows(train=1000, test=1).train
    source, target = vocabularies(pairs)
    batches = make_batches(pairs, source, target, batch_size=16, seed=3)
    said = sorted(tuple(source.decode(row)) for batch in batches for row in batch.source)
    assert said == sorted(pair.source for pair in pairs)
    places = sum(batch.source.numel() for batch in batches)
    real = sum(int((batch.source != PAD).sum()) for batch in batches)
    careless = make_batches(pairs, source, target, batch_size=16, seed=3, bucket=1)
    assert real / places > 0.9
    assert places < 0.7 * sum(batch.source.numel() for batch in careless)


def test_the_seed_orders_the_batches():
    pairs = single_numbers(train=200, test=1).train
    source, target = vocabularies(pairs)

    def order(seed):
        batches = make_batches(pairs, source, target, batch_size=16, seed=seed)
        return [row.tolist() for batch in batches for row in batch.source]

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert [len(row) for row in order(1)] != sorted(len(row) for row in order(1))


@pytest.mark.plain_types
def test_no_pairs_make_no_batch():
    words = Vocabulary([])
    with pytest.raises(ValueError, match="pairs: expected at least one pair, got \\[\\]"):
        make_batch([], words, words)


def test_a_file_of_pairs(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_bytes("\ufeffvier und zwanzig\ttwenty four\r\ndreißig\tthirty\n".encode())
    assert read_pairs(path) == [
        (("vier", "und", "zwanzig"), ("twenty", "four")),
        (("dreißig",), ("thirty",)),
    ]
    path.write_text("a b|c", encoding="utf-8")
    assert read_pairs(path, separator="|") == [(("a", "b"), ("c",))]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected one pair of sentences a line, got an empty file"),
        (b"a\tb\n\nc\td\n", "line 2: expected two columns with '\\\\t' between them, got an empty"),
        (b"a\tb\na b\n", "line 2: expected two columns .* got 1 columns"),
        (b"a\tb\tc\n", "line 1: expected two columns .* got 3 columns"),
        (b"a\t\n", "line 1: .* got no words in the second column"),
        (b"\tb\n", "line 1: .* got no words in the first column"),
        (b"a\tb\ndrei\xdfig\tthirty\n", "line 2: expected UTF-8 text, got byte 0xdf at column 5"),
    ],
)
def test_a_file_that_is_no_file_of_pairs(tmp_path, data, message):
    path = tmp_path / "pairs.tsv"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message):
        read_pairs(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_pairs(tmp_path / "none.tsv")
