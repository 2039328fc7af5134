"""Words and their numbers, with four words that mean something to the model alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jaxtyping import Int
from torch import Tensor

from ..bounds import PositiveInt
from ..errors import argument_error
from ..shapes import checked
from ..special_tokens import BOS, EOS, PAD, SPECIAL, UNK

__all__ = ["Vocabulary", "lengths"]


class Vocabulary:
    """The words that a model knows, each with a number; the first four are PAD, BOS, EOS and UNK.

    Words keep the order in which they come, so the same sentences give the same numbers.

    Raises: TypeError for a word that is no string; ValueError for a word that stands twice, is empty,
        or is one of the four special words.

    >>> words = Vocabulary(["vier", "und", "zwanzig"])
    >>> words.encode(["zwanzig", "und", "drei"])
    [6, 5, 3]
    >>> words.decode([6, 5, 3])
    ['zwanzig', 'und', '<unk>']
    """

    @checked
    def __init__(self, words: Iterable[str] | str) -> None:
        self.words = [*SPECIAL, *words]
        self._number: dict[str, int] = {}
        for number, word in enumerate(self.words):
            if not isinstance(word, str) or not word or word in self._number:
                wanted = "a new word that is not empty"
                raise argument_error(ValueError, f"words[{number - 4}]", repr(word), wanted)
            self._number[word] = number

    @classmethod
    @checked
    def of(cls, sentences: Iterable[Sequence[str]], *, least: PositiveInt = 1) -> Vocabulary:
        """The words that stand at least `least` times in the sentences, in the order of the alphabet.

        Raises: TypeError or ValueError that name the argument.
        """
        counts: dict[str, int] = {}
        for sentence in sentences:
            for word in sentence:
                counts[word] = counts.get(word, 0) + 1
        return cls(sorted(word for word, count in counts.items() if count >= least))

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._number

    @checked
    def encode(self, sentence: Sequence[str]) -> list[int]:
        """The number of each word; UNK for a word that is not known.

        Raises: TypeError for what are no words, a bare string too, whose "words" would be letters.
        """
        return [self._number.get(word, UNK) for word in sentence]

    @checked
    def decode(self, ids: Sequence[int] | Int[Tensor, " L"]) -> list[str]:
        """The words up to the first EOS, without PAD and BOS.

        Raises: TypeError for what are no numbers; ValueError for a number that no word has.
        """
        numbers = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        if EOS in numbers:
            numbers = numbers[: numbers.index(EOS)]
        unknown = [number for number in numbers if not 0 <= number < len(self)]
        if unknown:
            raise argument_error(
                ValueError, "ids", unknown[0], f"numbers from 0 to {len(self) - 1}"
            )
        return [self.words[number] for number in numbers if number not in (PAD, BOS)]


@checked
def lengths(ids: Int[Tensor, "B L"]) -> Int[Tensor, " B"]:
    """How many tokens of each row are no padding.

    Shapes: (B, L) -> (B).
    """
    return (ids != PAD).sum(1)
