"""WordPiece, BERT's tokenizer: the longest token that begins a word, then the longest that goes on."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import Annotated

import regex

from ..bounds import AtLeast, Below, PositiveInt, Unicode
from ..errors import argument_error
from ..shapes import checked
from .merges import learn_merges

__all__ = ["WordPiece"]

UNKNOWN = "[UNK]"
SPECIAL = ("[PAD]", UNKNOWN, "[CLS]", "[SEP]", "[MASK]")
PREFIX = "##"  # of a token that goes on with a word
LONGEST_WORD = 100  # characters; a longer word is unknown
CONTROL = r"(?![\t\n\r])[\p{Cc}\p{Cf}\p{Co}\uFFFD]"
IDEOGRAPH = (
    r"[\u3400-\u4DBF\u4E00-\u9FFF\uF900-\uFAFF"
    r"\U00020000-\U0002A6DF\U0002A700-\U0002CEAF\U0002F800-\U0002FA1F]"
)
PUNCTUATION = r"!-/:-@\[-`{-~\p{P}"


def normalize_text(text: str, *, lowercase: bool = True) -> str:
    """The text without control characters, ideographs between spaces; in lower case, without accents too.

    >>> normalize_text("Él was\\0 in 中国")
    'el was in  中  国 '
    """
    text = regex.sub(CONTROL, "", text)
    text = regex.sub(IDEOGRAPH, r" \g<0> ", text)
    if lowercase:
        text = regex.sub(r"\p{Mn}", "", unicodedata.normalize("NFD", text))
        text = "".join(character.lower() for character in text)  # one by one: Σ is always σ
    return text


def split_punctuation(text: str) -> list[str]:
    """The words between spaces, each punctuation mark by itself.

    >>> split_punctuation("isn't it?  yes")
    ['isn', "'", 't', 'it', '?', 'yes']
    """
    return regex.findall(rf"[{PUNCTUATION}]|[^\s{PUNCTUATION}]+", text)


def longest_matches(word: str, vocabulary: Container[str]) -> list[str]:
    """The tokens of a word, from the left always the longest; [UNK] alone if they do not reach its end.

    >>> longest_matches("unable", {"u", "un", "##a", "##ab", "##le"})
    ['un', '##ab', '##le']
    """
    tokens, start = [], 0
    while start < len(word):
        prefix = PREFIX if start else ""
        ends = range(len(word), start, -1)
        end = next((end for end in ends if prefix + word[start:end] in vocabulary), None)
        if end is None or len(word) > LONGEST_WORD:
            return [UNKNOWN]
        tokens.append(prefix + word[start:end])
        start = end
    return tokens


def join(left: str, right: str) -> str:
    """The token that two neighbors make: ##a and ##b make ##ab."""
    return left + right.removeprefix(PREFIX)


class WordPiece:
    """WordPiece: words are split into tokens of the vocabulary, ## before those that go on with a word.

    lowercase: for "uncased" vocabularies: in lower case and without accents.

    Raises: TypeError for a vocabulary that is no list of strings; ValueError for a token that occurs
        twice, and without [UNK].
    Source: Schuster and Nakajima 2012; Wu et al. 2016, section 4.1; Devlin et al. 2018, section 3.

    >>> words = ["low"] * 5 + ["lower"] * 2 + ["newest"] * 6 + ["widest"] * 3
    >>> word_piece = WordPiece.train(words, size=27)
    >>> word_piece.vocabulary[15:]
    ['##d', '##e', '##i', '##o', '##r', '##s', '##t', '##w', '##es', '##est', 'lo', 'low']
    >>> word_piece.tokenize("Lowest new!"), word_piece.encode("low"), word_piece.decode([26, 24])
    (['low', '##est', 'n', '##e', '##w', '[UNK]'], [26], 'lowest')
    """

    @checked
    def __init__(self, vocabulary: Sequence[str], *, lowercase: bool = True) -> None:
        self.vocabulary, self.lowercase = list(vocabulary), lowercase
        self.vocab_size = len(self.vocabulary)
        self.ids = {token: i for i, token in enumerate(vocabulary)}
        if len(self.ids) < len(vocabulary) or UNKNOWN not in self.ids:
            twice = len(vocabulary) - len(self.ids)
            came = f"{twice} that occur before" if twice else f"no {UNKNOWN}"
            raise argument_error(ValueError, "vocabulary", came, f"different tokens and {UNKNOWN}")

    def __len__(self) -> int:
        return self.vocab_size

    @classmethod
    @checked
    def train(
        cls, texts: Iterable[Unicode], size: PositiveInt, *, lowercase: bool = True
    ) -> WordPiece:
        """Learn a vocabulary of `size` tokens, or of fewer if nothing is left to merge.

        As in the library tokenizers this is byte-pair encoding over characters, with ## before all but
        the first of a word. The vocabulary holds BERT's special tokens, the characters, those with ##,
        and what the merges make.

        Raises: TypeError or ValueError for what are no texts, or a size that is less than the special
            tokens and the characters.
        """
        normal = (normalize_text(text, lowercase=lowercase) for text in texts)
        counts = Counter(word for text in normal for word in split_punctuation(text))
        words = {(w[0], *(PREFIX + c for c in w[1:])): count for w, count in counts.items()}
        first = sorted({character for word in counts for character in word})
        vocabulary = [*SPECIAL, *first, *sorted({token for word in words for token in word[1:]})]
        if size < len(vocabulary):
            raise argument_error(ValueError, "size", size, f"at least {len(vocabulary)}")
        merges = learn_merges(words, vocabulary, size, join)
        return cls(vocabulary + [join(*pair) for pair in merges], lowercase=lowercase)

    @checked
    def tokenize(self, text: Unicode) -> list[str]:
        """The tokens of a text; special tokens are not added, and not looked for.

        Raises: TypeError for what is no string; ValueError for a lone surrogate.
        """
        words = split_punctuation(normalize_text(text, lowercase=self.lowercase))
        return [token for word in words for token in longest_matches(word, self.ids)]

    def encode(self, text: str) -> list[int]:
        """The token IDs of a text.

        Raises: TypeError for what is no string; ValueError for a lone surrogate.
        """
        return [self.ids[token] for token in self.tokenize(text)]

    @checked
    def decode(self, ids: Sequence[Annotated[int, AtLeast(0), Below("self.vocab_size")]]) -> str:
        """The words of token IDs, a space between any two; what the text had lost stays lost.

        Raises: TypeError for what are no ints; ValueError for an ID that no token has.
        """
        return " ".join(self.vocabulary[i] for i in ids).replace(f" {PREFIX}", "")
