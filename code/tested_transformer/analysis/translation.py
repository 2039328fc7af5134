"""What a translation model gets wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..bounds import PositiveInt
from ..data import Pair, Vocabulary
from ..generation.beam_search import beam_search
from ..generation.decoding_state import Seq2SeqModel, Seq2SeqState
from ..generation.generate import generate
from ..generation.sampling import GREEDY, Sampling
from ..shapes import checked
from ..special_tokens import BOS, EOS, pad

__all__ = ["Mistake", "find_mistakes", "translate"]


@checked
def translate(
    model: Seq2SeqModel,
    sentences: Sequence[Sequence[str]],
    source: Vocabulary,
    target: Vocabulary,
    *,
    max_new: PositiveInt = 64,
    num_beams: PositiveInt = 1,
    sampling: Sampling = GREEDY,
    cache: bool = True,
) -> list[list[str]]:
    """Translate sentences, given as words, in one batch.

    Raises: TypeError or ValueError that name the argument.
    Source: chapter 11.
    """
    if not sentences:
        return []
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    try:
        ids = pad([[*source.encode(words), EOS] for words in sentences]).to(device)
        start = torch.full((len(sentences), 1), BOS, device=device)
        state = Seq2SeqState(model, ids, cache=cache)
        if num_beams > 1:
            found = beam_search(state, start, num_beams=num_beams, max_new=max_new)
        else:
            found = generate(state, start, max_new=max_new, sampling=sampling)
    finally:
        model.train(was_training)
    return found.decode(target)


class Mistake(NamedTuple):
    """A sentence that a model did not translate word for word, and what it generated."""

    pair: Pair
    translation: tuple[str, ...]


@checked
def find_mistakes(
    model: Seq2SeqModel,
    pairs: Sequence[Pair],
    source: Vocabulary,
    target: Vocabulary,
    *,
    batch_size: PositiveInt = 500,
    **options: Any,
) -> list[Mistake]:
    """Translate every pair's source and give back those that are not its target, word for word.

    1 - len(mistakes) / len(pairs) is the exact match. Options are those of `translate`.

    Raises: TypeError or ValueError that name the argument.
    Source: chapter 10.
    """
    mistakes = []
    by_length = sorted(pairs, key=lambda pair: len(pair.target))
    for first in range(0, len(by_length), batch_size):
        some = by_length[first : first + batch_size]
        translations = translate(model, [pair.source for pair in some], source, target, **options)
        both = zip(some, map(tuple, translations), strict=True)
        mistakes += [Mistake(pair, words) for pair, words in both if words != pair.target]
    return mistakes
