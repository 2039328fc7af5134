"""Byte-level byte-pair encoding, GPT-2's: a token is a byte, or two tokens that were often neighbors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated

import regex

from ..bounds import AtLeast, Below, Unicode
from ..errors import argument_error
from ..shapes import checked
from .merges import learn_merges

__all__ = ["ByteBPE"]

PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def byte_characters() -> dict[int, str]:
    """A printable character for each byte: its own in Latin-1 if it has one, else one from U+0100 on.

    >>> [byte_characters()[byte] for byte in b"a \\n"]
    ['a', 'Ġ', 'Ċ']
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


CHARACTERS = byte_characters()  # in the order of GPT-2's token IDs
BYTES = {character: byte for byte, character in CHARACTERS.items()}


def split_words(text: str) -> list[str]:
    """The words of a text, each with the space before it, a character for each byte.

    >>> split_words("Hello, it's  24 é")
    ['Hello', ',', 'Ġit', "'s", 'Ġ', 'Ġ24', 'ĠÃ©']
    """
    words = regex.findall(PATTERN, text)
    return ["".join(CHARACTERS[byte] for byte in word.encode()) for word in words]


class ByteBPE:
    """Byte-level BPE: a vocabulary of the 256 bytes and what each merge makes, in the order of learning.

    Any text can be encoded, and decodes to itself.

    Raises: TypeError for merges that are no pairs of strings; ValueError for a merge of tokens that are
        not known by then, or into one that is.
    Source: Sennrich et al. 2016, algorithm 1; bytes and pattern: Radford et al. 2019, section 2.2.

    >>> bpe = ByteBPE.train(["low"] * 5 + ["lower"] * 2 + ["newest"] * 6 + ["widest"] * 3, size=260)
    >>> bpe.merges
    [('e', 's'), ('es', 't'), ('l', 'o'), ('lo', 'w')]
    >>> bpe.tokenize("lowest"), bpe.encode("lowest"), bpe.decode([259, 257])
    (['low', 'est'], [259, 257], 'lowest')
    """

    @checked
    def __init__(self, merges: Sequence[tuple[str, str]]) -> None:
        self.merges = list(merges)
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}
        self.vocabulary = list(CHARACTERS.values())
        self.ids = {token: i for i, token in enumerate(self.vocabulary)}
        for rank, (left, right) in enumerate(merges):
            if left not in self.ids or right not in self.ids or left + right in self.ids:
                wanted = "two known tokens that make a new one"
                raise argument_error(ValueError, f"merges[{rank}]", (left, right), wanted)
            self.ids[left + right] = len(self.vocabulary)
            self.vocabulary.append(left + right)
        self.vocab_size = len(self.vocabulary)

    def __len__(self) -> int:
        return self.vocab_size

    @classmethod
    @checked
    def train(cls, texts: Iterable[Unicode], size: Annotated[int, AtLeast(256)]) -> ByteBPE:
        """Learn merges from texts, until there are `size` tokens or nothing is left to merge.

        Raises: TypeError or ValueError for what are no texts, or a size below the 256 bytes.
        """
        counts = Counter(word for text in texts for word in split_words(text))
        words = {tuple(word): count for word, count in counts.items()}
        return cls(learn_merges(words, CHARACTERS.values(), size))

    @checked
    def tokenize(self, text: Unicode) -> list[str]:
        """The tokens of a text, a character for each byte.

        Raises: TypeError for what is no string; ValueError for a lone surrogate.
        """
        return [token for word in split_words(text) for token in self._merge(list(word))]

    def _merge(self, tokens: list[str]) -> list[str]:
        """Merge the neighbors whose merge was learned first, and again, until no merge is left."""
        while True:
            pairs = enumerate(pairwise(tokens))
            ranked = [(self.ranks[pair], i) for i, pair in pairs if pair in self.ranks]
            if not ranked:
                return tokens
            _, i = min(ranked)
            tokens[i : i + 2] = [tokens[i] + tokens[i + 1]]

    def encode(self, text: str) -> list[int]:
        """The token IDs of a text.

        Raises: TypeError for what is no string; ValueError for a lone surrogate.
        """
        return [self.ids[token] for token in self.tokenize(text)]

    @checked
    def decode(self, ids: Sequence[Annotated[int, AtLeast(0), Below("self.vocab_size")]]) -> str:
        """The text of token IDs; bytes that are no UTF-8 become U+FFFD.

        Raises: TypeError for what are no ints; ValueError for an ID that no token has.
        """
        characters = "".join(self.vocabulary[i] for i in ids)
        return bytes(BYTES[c] for c in characters).decode(errors="replace")
