"""Masked tokens and pairs of sentences: what the Specs do not ask."""

import pytest
import torch
from torch.nn import functional

from tested_transformer.data.masked_tokens import IGNORE, mask_tokens
from tested_transformer.data.sentence_pairs import join_pairs, next_sentence_pairs
from tested_transformer.models.bert import Bert, BertConfig

IDS = torch.tensor([[2, 7, 8, 9, 3], [2, 6, 3, 0, 0]])
OPTIONS = {"mask_id": 4, "vocab_size": 10}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_loss_is_that_of_the_chosen_tokens_alone():
    """F.cross_entropy ignores the other labels by itself."""
    labels = mask_tokens(IDS, IDS < 5, seeded(), **OPTIONS).labels
    logits = torch.randn(2, 5, 10, generator=seeded(1))
    chosen = labels != IGNORE
    assert chosen.sum(1).tolist() == [1, 1]
    loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert torch.isclose(loss, functional.cross_entropy(logits[chosen], labels[chosen]))


def test_a_batch_of_pairs_is_what_bert_takes():
    pairs, labels = next_sentence_pairs([[[5], [6, 7]], [[8], [9]]], seeded())
    model = Bert(
        BertConfig(10, d_model=6, num_heads=3, num_layers=2, max_length=9, head="next_sentence")
    )
    logits = model(*join_pairs(pairs, cls_id=2, sep_id=3))
    assert logits.shape == (len(labels), 2)


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mask_tokens(IDS + 9, IDS < 5, seeded(), **OPTIONS), "ids: expected .* vocab_size"),
        (lambda: mask_tokens(IDS, IDS[:1] < 5, seeded(), **OPTIONS), "special: expected shape"),
        (lambda: next_sentence_pairs([[[5], [6]]], seeded()), "documents: expected at least two"),
        (
            lambda: [next_sentence_pairs([[[5], [6]], [[6]]], seeded(n)) for n in range(9)],
            r"documents: expected a sentence of another document that is not \[6\], got none",
        ),
    ],
)
def test_calls_that_do_not_fit(call, message):
    with pytest.raises(ValueError, match=message):
        call()
