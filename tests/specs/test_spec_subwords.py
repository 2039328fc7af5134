"""The Specs of subword tokenizers: what they accept, and that each famous mistake is told apart."""

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from spec_tools import assert_spec_is_sound
from tested_transformer.data.byte_bpe import ByteBPE
from tested_transformer.data.word_piece import (
    WordPiece,
    longest_matches,
    normalize_text,
    split_punctuation,
)
from tested_transformer.specs.byte_bpe.spec import MERGES_SPEC, TEXT_SPEC, TOKENS_SPEC
from tested_transformer.specs.judge import judge
from tested_transformer.specs.word_piece.spec import PIECES, VOCABULARY, WORDS

pytestmark = pytest.mark.plain_types
SEEDS = pytest.mark.parametrize("seed", [0, 1, 2, 3])


def of_library(merges):
    tokenizer = Tokenizer(models.BPE(vocab=ByteBPE(merges).ids, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def words_of_library(text, lowercase=True):
    normal = normalizers.BertNormalizer(lowercase=lowercase).normalize_str(text)
    return [word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normal)]


def pieces_of_library(word, vocabulary):
    ids = {token: i for i, token in enumerate(sorted(vocabulary))}
    return [token.value for token in models.WordPiece(ids, unk_token="[UNK]").tokenize(word)]


RIGHT = [
    (MERGES_SPEC, lambda texts, size: ByteBPE.train(texts, size).merges),
    (TOKENS_SPEC, lambda text, merges: ByteBPE(merges).tokenize(text)),
    (TOKENS_SPEC, lambda text, merges: of_library(merges).encode(text).tokens),
    (TEXT_SPEC, lambda ids, merges: ByteBPE(merges).decode(ids)),
    (TEXT_SPEC, lambda ids, merges: of_library(merges).decode(ids)),
    (
        WORDS,
        lambda text, lowercase=True: split_punctuation(normalize_text(text, lowercase=lowercase)),
    ),
    (WORDS, words_of_library),
    (PIECES, longest_matches),
    (PIECES, pieces_of_library),
    (
        VOCABULARY,
        lambda texts, size, lowercase=True: (
            WordPiece.train(texts, size, lowercase=lowercase).vocabulary
        ),
    ),
]


@SEEDS
@pytest.mark.parametrize(("spec", "right"), RIGHT)
def test_right_implementations_pass(spec, right, seed):
    verdict = judge(spec, right, seed=seed)
    assert verdict.passed, verdict


@pytest.mark.parametrize(
    "spec", {id(spec): spec for spec, _ in RIGHT}.values(), ids=lambda s: s.name
)
def test_specs_are_sound(spec):
    assert_spec_is_sound(spec)


def test_an_answer_of_another_kind_is_an_error_that_says_so():
    verdict = judge(TOKENS_SPEC, lambda text, merges: text)
    assert not verdict.passed
    assert "the answer: expected a list of strings, got str" in repr(verdict)
