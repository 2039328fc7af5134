"""Byte-level BPE: trained and applied as the library tokenizers does it, and nothing is lost."""

import json
from functools import cache

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tested_transformer import reference
from tested_transformer.data.byte_bpe import CHARACTERS, PATTERN, ByteBPE, split_words
from tested_transformer.data.merges import learn_merges, merge_pair
from texts import CHARACTERS as ALL
from texts import SNIPPETS, texts_without

CLASSES = [r"\s", r"\p{L}", r"\p{N}"]  # of characters, in the pattern


@cache
def in_class(kind):
    """The characters of a class, by their library and by ours."""
    others = normalizers.Replace(Regex(rf"[^{kind}]"), "")
    return set(others.normalize_str("".join(ALL))), set(regex.findall(kind, "".join(ALL)))


def unequal_characters():
    return {c for kind in CLASSES for c in set.symmetric_difference(*in_class(kind))}


# All of Unicode takes seconds: not before a test needs it.
TEXT = st.deferred(lambda: texts_without(unequal_characters()))
TRAINED = ByteBPE.train(SNIPPETS * 2, 600)


def of_library(bpe, prefix=False):
    """The same merges in the library."""
    tokenizer = Tokenizer(models.BPE(vocab=bpe.ids, merges=bpe.merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def trained_by_library(texts, size):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


LIBRARY = of_library(TRAINED)


def test_the_characters_are_those_of_gpt2_in_its_order():
    assert set(CHARACTERS.values()) == set(pre_tokenizers.ByteLevel.alphabet())
    known = {"!": 0, "A": 32, "a": 64, "Ċ": 198, "Ġ": 220}  # of GPT-2's vocab.json
    assert {c: ByteBPE([]).ids[c] for c in known} == known
    assert ByteBPE([]).vocabulary == sorted(CHARACTERS.values())


def test_ours_is_of_a_newer_unicode_and_differs_in_nothing_else():
    """New characters are in no class of the library's."""
    for kind in CLASSES:
        theirs, ours = in_class(kind)
        assert theirs <= ours, kind
        assert len(theirs) > 0.8 * len(ours), kind
    assert min(unequal_characters()) > "\u0530"  # not in Latin, Greek, Cyrillic


@given(TEXT)
def test_words_are_those_of_the_library(text):
    theirs = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    assert split_words(text) == [word for word, _ in theirs]
    assert "".join(regex.findall(PATTERN, text)) == text


@given(TEXT)
@example("".join(SNIPPETS))
def test_tokens_ids_and_text_are_those_of_the_library(text):
    theirs = LIBRARY.encode(text)
    assert TRAINED.tokenize(text) == theirs.tokens
    assert TRAINED.encode(text) == theirs.ids
    assert TRAINED.decode(theirs.ids) == LIBRARY.decode(theirs.ids) == text


@given(st.text())
def test_every_text_comes_back(text):
    for bpe in (TRAINED, ByteBPE([])):
        assert bpe.decode(bpe.encode(text)) == text


@given(st.lists(st.integers(0, 599), max_size=12))
def test_any_ids_decode_as_in_the_library(ids):
    """Most are no UTF-8."""
    assert TRAINED.decode(ids) == LIBRARY.decode(ids)


@given(st.data())
def test_merges_that_nobody_learned_act_as_in_the_library(data):
    """Any order of merges that makes each token once, from a small alphabet: many overlap."""
    tokens, merges = ["a", "b", "Ġ"], []
    for _ in range(data.draw(st.integers(0, 8))):
        pair = tuple(data.draw(st.sampled_from(tokens)) for _ in range(2))
        if "".join(pair) not in tokens:
            tokens, merges = [*tokens, "".join(pair)], [*merges, pair]
    bpe, text = ByteBPE(merges), data.draw(st.text("ab ", max_size=24))
    assert bpe.encode(text) == of_library(bpe).encode(text).ids


@given(st.lists(TEXT | st.text("ab ", max_size=30), max_size=4), st.integers(256, 330))
@example(["aaab aaab aaaa"] * 3, 270)
@example(["ab ba ab ba cd dc"], 300)
@example([], 300)
def test_training_gives_the_merges_of_the_library(texts, size):
    ours, theirs = ByteBPE.train(texts, size), trained_by_library(texts, size)
    assert ours.ids == theirs.get_vocab()
    assert ours.merges == [tuple(pair) for pair in json.loads(theirs.to_str())["model"]["merges"]]


@pytest.mark.plain_types  # millions of calls, of kinds that other tests check
def test_training_on_the_prose_of_python():
    """On 460,000 characters; ties come by the hundred."""
    from pydoc_data.topics import topics

    texts = list(topics.values())
    ours, theirs = ByteBPE.train(texts, 350), trained_by_library(texts, 350)
    assert ours.ids == theirs.get_vocab()
    assert [ours.encode(text) for text in texts] == [e.ids for e in theirs.encode_batch(texts)]


def test_a_corpus_may_be_a_generator_and_its_order_does_not_matter():
    texts = ["low lower", "newest", "lowest widest"] * 3
    assert ByteBPE.train((t for t in texts), 270).merges == ByteBPE.train(texts[::-1], 270).merges


def test_training_stops_when_nothing_is_left():
    bpe = ByteBPE.train(["ab ab"], 1000)
    assert bpe.merges == [("a", "b"), ("Ġ", "ab")]
    assert len(bpe) == bpe.vocab_size == 258


def test_the_merges_of_words_by_hand():
    """Sennrich et al. 2016, figure 1, with words in place of its end-of-word mark."""
    assert merge_pair("aaaa", ("a", "a"), "X") == ("X", "X")
    assert merge_pair((), ("a", "b"), "X") == ()
    assert learn_merges({("a", "b"): 1, ("b", "a"): 1}, [*"ab"], 3) == [("a", "b")]
    assert learn_merges({("a", "b"): 1, ("b", "a"): 1}, [*"ba"], 3) == [("b", "a")]
    assert learn_merges({("a",): 9}, [*"a"], 3) == []


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ByteBPE([("a", "b"), ("a", "b")]), ValueError, r"merges\[1\]: expected two known"),
        (lambda: ByteBPE([("ab", "c")]), ValueError, r"merges\[0\]: .* got \('ab', 'c'\)"),
        (lambda: ByteBPE([("a", " ")]), ValueError, r"merges\[0\]: expected two known"),
        (lambda: ByteBPE([("a",)]), ValueError, r"merges\[0\]: expected 2 values, got 1"),
        (lambda: ByteBPE("ab"), TypeError, "merges: expected a sequence, got str"),
        (lambda: ByteBPE.train("low", 300), TypeError, "texts: expected an iterable of strings"),
        (lambda: ByteBPE.train(["low"], 255), ValueError, "size: expected at least 256, got 255"),
        (lambda: ByteBPE.train(["low", 3], 300), TypeError, r"texts\[1\]: expected a string"),
        (lambda: ByteBPE.train(["\udc00"], 300), ValueError, r"texts\[0\]: expected text without"),
        (lambda: TRAINED.encode(b"low"), TypeError, "text: expected a string, got bytes"),
        (lambda: TRAINED.encode("a\ud800"), ValueError, "text: expected text without lone surr"),
        (lambda: TRAINED.decode([3, 600]), ValueError, r"ids\[1\]: .*vocab_size = 600, got 600"),
        (lambda: TRAINED.decode([-1]), ValueError, r"ids\[0\]: expected at least 0"),
        (lambda: TRAINED.decode([True]), TypeError, r"ids\[0\]: expected an int, got bool"),
        (lambda: TRAINED.decode("low"), TypeError, "ids: expected a sequence of ints, got str"),
    ],
)  # fmt: skip
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


@given(st.lists(st.sampled_from(SNIPPETS) | st.text("ab ", max_size=20), max_size=3), st.data())
def test_ours_is_the_slow_reference(texts, data):
    bpe, text = ByteBPE.train(texts, 264), data.draw(st.sampled_from(SNIPPETS))
    assert bpe.merges == reference.byte_bpe_merges(texts, 264)
    assert bpe.tokenize(text) == reference.byte_bpe_tokens(text, bpe.merges)
    assert bpe.decode([*range(264)][: len(bpe)]) == reference.byte_bpe_text(
        [*range(264)][: len(bpe)], bpe.merges
    )
