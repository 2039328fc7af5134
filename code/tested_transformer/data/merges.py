"""Byte-pair encoding's training: merge the two neighbors that are most frequent, and again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from operator import add

from ..bounds import NonNegativeInt
from ..shapes import checked

__all__ = ["learn_merges"]

Pair = tuple[str, str]
Words = Mapping[tuple[str, ...], int]  # the tokens of each word, and how often it occurs


def count_pairs(words: Words) -> Counter[Pair]:
    """How often two tokens are neighbors in a word.

    >>> count_pairs({("a", "a", "a"): 2, ("a", "b"): 1})
    Counter({('a', 'a'): 4, ('a', 'b'): 1})
    """
    counts: Counter[Pair] = Counter()
    for tokens, count in words.items():
        for pair in pairwise(tokens):
            counts[pair] += count
    return counts


def merge_pair(tokens: Sequence[str], pair: Pair, merged: str) -> tuple[str, ...]:
    """The tokens with every occurrence of the pair merged, from the left.

    >>> merge_pair(("a", "a", "a", "b"), ("a", "a"), "aa")
    ('aa', 'a', 'b')
    """
    result, i = [], 0
    while i < len(tokens):
        found = tuple(tokens[i : i + 2]) == pair
        result.append(merged if found else tokens[i])
        i += 2 if found else 1
    return tuple(result)


@checked
def learn_merges(
    words: Words,
    vocabulary: Iterable[str],
    size: NonNegativeInt,
    join: Callable[[str, str], str] = add,
) -> list[Pair]:
    """Merge the most frequent pair, and again, until there are `size` tokens or no pair is left.

    Of equally frequent pairs the one whose tokens came first into the vocabulary is merged.

    Raises: TypeError or ValueError that name the argument.
    Source: Sennrich et al. 2016, algorithm 1.

    >>> words = {tuple("low"): 5, tuple("lower"): 2, tuple("wide"): 1}
    >>> learn_merges(words, [*"deilorw"], size=10)
    [('l', 'o'), ('lo', 'w'), ('e', 'r')]
    """
    ids = {token: i for i, token in enumerate(vocabulary)}
    merges: list[Pair] = []
    while len(ids) < size and (counts := count_pairs(words)):
        best = min(counts, key=lambda pair: (-counts[pair], ids[pair[0]], ids[pair[1]]))
        merged = join(*best)
        words = {merge_pair(tokens, best, merged): count for tokens, count in words.items()}
        ids[merged] = len(ids)
        merges.append(best)
    return merges
