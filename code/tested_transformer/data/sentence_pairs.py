"""Pairs of sentences: does the second follow the first, or was it drawn at random? As BERT reads them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ..bounds import Int64
from ..errors import argument_error
from ..shapes import checked
from ..special_tokens import PAD, pad

__all__ = ["IS_NEXT", "IS_RANDOM", "LabeledPairs", "PairBatch", "join_pairs", "next_sentence_pairs"]

IS_NEXT, IS_RANDOM = 0, 1  # BERT's labels
Sentence = Sequence[Int64]
SentencePair = tuple[Sentence, Sentence]


class LabeledPairs(NamedTuple):
    """Pairs of sentences, and labels (P): IS_NEXT (0) where the second follows, IS_RANDOM (1) if not."""

    pairs: list[SentencePair]
    labels: Tensor


class PairBatch(NamedTuple):
    """A batch of pairs, in the order in which `Bert` takes them: `model(*batch)`. All (B, L)."""

    input_ids: Tensor
    attention_mask: Tensor
    token_type_ids: Tensor


@checked
def next_sentence_pairs(
    documents: Sequence[Sequence[Sentence]], generator: torch.Generator
) -> LabeledPairs:
    """A pair for each sentence that has a next one: half of the seconds are that, half are random.

    A coin decides for each pair. A random second sentence is any sentence of another document, but
    never one with the words of the true next: the label would be wrong.

    Raises: TypeError or ValueError that name the argument; ValueError for fewer than two documents, or
        some in which no other sentence is left to draw.
    Source: Devlin et al. 2019, section 3.1, "Next Sentence Prediction"; the labels: google-research/bert,
        create_pretraining_data.py.
    """
    if len(documents) < 2:
        wanted = "at least two: a random sentence comes from another document"
        raise argument_error(ValueError, "documents", str(len(documents)), wanted)
    pairs, labels = [], []
    for number, document in enumerate(documents):
        others = [each for other, one in enumerate(documents) if other != number for each in one]
        for first, second in pairwise(document):
            follows = torch.rand(1, generator=generator).item() < 0.5
            if not follows:
                second = another_sentence(others, second, generator)
            pairs.append((first, second))
            labels.append(IS_NEXT if follows else IS_RANDOM)
    return LabeledPairs(pairs, torch.tensor(labels, dtype=torch.long))


def another_sentence(
    others: Sequence[Sentence], second: Sentence, generator: torch.Generator
) -> Sentence:
    """Any of the others that does not have the words of the second."""
    wrong = [each for each in others if list(each) != list(second)]
    if not wrong:
        wanted = f"a sentence of another document that is not {list(second)}"
        raise argument_error(ValueError, "documents", "none", wanted)
    return wrong[int(torch.randint(len(wrong), (1,), generator=generator))]


@checked
def join_pairs(
    pairs: Sequence[SentencePair], *, cls_id: Int64, sep_id: Int64, pad_id: Int64 = PAD
) -> PairBatch:
    """[CLS] first [SEP] second [SEP], padded on the right, with its mask and its segments.

    The first separator belongs to segment 0, the second one to segment 1; padding is in segment 0.

    Shapes: B pairs -> input_ids (B, L), attention_mask (B, L), True for a token that is no padding, and
        token_type_ids (B, L).
    Raises: TypeError or ValueError that name the argument.
    Source: Devlin et al. 2019, section 3, "Input/Output Representations"; figure 2.

    >>> batch = join_pairs([([5, 6], [7]), ([8], [9])], cls_id=2, sep_id=3)
    >>> batch.input_ids.tolist()
    [[2, 5, 6, 3, 7, 3], [2, 8, 3, 9, 3, 0]]
    >>> batch.token_type_ids.tolist()
    [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 0]]
    """
    texts = [([cls_id, *first, sep_id], [*second, sep_id]) for first, second in pairs]
    ids = pad([[*one, *two] for one, two in texts], value=pad_id)  # B L
    lengths = torch.tensor([len(one) + len(two) for one, two in texts], dtype=torch.long)
    segments = pad([[0] * len(one) + [1] * len(two) for one, two in texts], value=0)  # B L
    real = torch.arange(ids.shape[1]) < lengths[:, None]  # B L
    return PairBatch(ids, real, segments)
