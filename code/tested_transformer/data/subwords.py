"""Cutting words in other ways: into characters, and into pieces that are found by counting."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ..bounds import PositiveInt, Where
from ..errors import argument_error
from ..shapes import checked
from .pairs import SEPARATOR, Pair

__all__ = ["Subwords", "characters", "join_pieces", "resegment", "written_words"]

SPACE = "▁"  # stands for the space before a word, as in SentencePiece
UNKNOWN = "<unk>"
WORD = f"a word that is not empty, without spaces and without {SPACE}"
Word = Annotated[str, Where(WORD, lambda word: word.split() == [word] and SPACE not in word)]
Cut = Callable[[tuple[str, ...]], Sequence[str]]


@checked
def written_words(morphemes: Sequence[Word]) -> tuple[str, ...]:
    """The parts of German number words put together as people write them; commas stay apart.

    Raises: TypeError or ValueError for what are no words.

    >>> written_words(("vier", "und", "zwanzig", ",", "hundert", "ein"))
    ('vierundzwanzig', ',', 'hunderteins')
    """
    words, parts = [], []
    for part in (*morphemes, SEPARATOR):
        if part != SEPARATOR:
            parts.append(part)
            continue
        if parts:
            words.append("".join(parts) + ("s" if parts[-1] == "ein" else ""))
        words, parts = [*words, SEPARATOR], []
    return tuple(words[:-1])


@checked
def characters(words: Sequence[Word]) -> tuple[str, ...]:
    """Each character of a sentence, and SPACE before every word but the first.

    Raises: TypeError or ValueError for what are no words.

    >>> characters(["vier", "und"])
    ('v', 'i', 'e', 'r', '▁', 'u', 'n', 'd')
    """
    return tuple(SPACE.join(words))


@checked
def join_pieces(pieces: Iterable[str]) -> tuple[str, ...]:
    """The words again, from characters or pieces.

    >>> join_pieces(["vier", "und", "▁zwan", "zig"])
    ('vierund', 'zwanzig')
    """
    return tuple(word for word in "".join(pieces).split(SPACE) if word)


class Subwords:
    """Byte-pair encoding: start from characters, then merge the pair that is most frequent, and again.

    A piece never reaches from one word into the next. A character that was never seen in training
    stays a piece by itself, so that joined pieces always give the words back.

    Source: Sennrich et al. 2016, section 3.2; SPACE in place of their end-of-word mark: Kudo and
        Richardson 2018.

    >>> cut = Subwords.train([["neun"], ["neunzig"], ["vierzig"]], size=13)
    >>> cut.split(["neunundvierzig"])
    ('neun', 'u', 'n', 'd', 'v', 'i', 'e', 'r', 'zig')
    """

    @checked
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    @classmethod
    @checked
    def train(cls, sentences: Iterable[Sequence[Word]], size: PositiveInt) -> Subwords:
        """Count in the sentences until there are `size` different pieces, or nothing is left to merge.

        The characters count as pieces. The same sentences give the same pieces.

        Raises: TypeError or ValueError for sentences that are none, a size that is no number, or one
            that is smaller than the number of characters.
        """
        texts = [" ".join(sentence) for sentence in sentences]
        alphabet = set("".join(texts).replace(" ", SPACE))
        if not alphabet:
            raise argument_error(ValueError, "sentences", "none", "at least one word")
        if size < len(alphabet):
            raise argument_error(
                ValueError, "size", size, f"at least {len(alphabet)}, one a character"
            )
        tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="never")
        tokenizer.decoder = decoders.Metaspace(SPACE, prepend_scheme="never")
        trainer = trainers.BpeTrainer(
            vocab_size=size + 1, special_tokens=[UNKNOWN], show_progress=False
        )
        tokenizer.train_from_iterator(texts, trainer, length=len(texts))
        return cls(tokenizer)

    def __len__(self) -> int:
        """How many different pieces there are."""
        return self.tokenizer.get_vocab_size() - 1  # without UNKNOWN

    @property
    def merges(self) -> list[tuple[str, str]]:
        """What was merged, the most frequent pair first."""
        return [tuple(pair) for pair in json.loads(self.tokenizer.to_str())["model"]["merges"]]

    @checked
    def split(self, words: Sequence[Word]) -> tuple[str, ...]:
        """The pieces of a sentence; SPACE begins every word but the first.

        Raises: TypeError or ValueError for what are no words.
        """
        text = " ".join(words)
        places = self.tokenizer.encode(text).offsets
        return tuple(text[first:end].replace(" ", SPACE) for first, end in places)


@checked
def resegment(
    pairs: Iterable[Pair], *, source: Cut | None = None, target: Cut | None = None
) -> list[Pair]:
    """The same pairs with the words of one side or both cut in another way; None leaves a side alone.

    >>> resegment([Pair(("zwei",), ("two",))], source=characters)
    [Pair(source=('z', 'w', 'e', 'i'), target=('two',))]
    """
    return [
        Pair(
            pair.source if source is None else tuple(source(pair.source)),
            pair.target if target is None else tuple(target(pair.target)),
        )
        for pair in pairs
    ]
