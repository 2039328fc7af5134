"""The language that counts, and the prose: what is read, what is measured, what is pinned."""

import sys

import pytest
import torch

from tested_transformer.data.prose import PROSE_HASH, python_prose
from tested_transformer.experiments.ch13_counting import (
    LENGTH,
    counting_batch,
    counting_vocabulary,
    counting_words,
    measure_counting,
)
from tested_transformer.experiments.ch13_prose import load_prose_model

WORDS = counting_vocabulary()


def test_sequences_count_on():
    assert " ".join(counting_words(99, 2)) == "ninety nine , one hundred ,"
    ids = counting_batch(3, LENGTH, torch.Generator().manual_seed(0), WORDS)
    assert ids.shape == (3, LENGTH)
    assert "<unk>" not in WORDS.decode(ids.flatten().tolist())


class Oracle(torch.nn.Module):
    """Knows the next token of the 500 sequences, but for those at one position."""

    def __init__(self, wrong_at=None):
        super().__init__()
        self.wrong_at = wrong_at

    def forward(self, ids):
        whole = counting_batch(500, LENGTH, torch.Generator().manual_seed(1000), WORDS)
        logits = 60.0 * torch.nn.functional.one_hot(whole[:, 1:], len(WORDS)).float()
        if self.wrong_at is not None:
            logits[:, self.wrong_at] *= -1
        return logits


def test_a_number_is_right_if_all_its_tokens_are():
    assert measure_counting(Oracle()) == (0.0, 1.0)
    loss, right = measure_counting(Oracle(wrong_at=20))
    assert loss > 0
    assert 0.5 < right < 1


def test_the_prose_is_pinned():
    if sys.version_info[:3] != (3, 11, 7):
        with pytest.raises(ValueError, match=PROSE_HASH[:8]):
            python_prose()
    learned, held_out = python_prose(any_version=True)
    assert not {*learned} & {*held_out}
    assert len(learned) > 8 * len(held_out)


def test_the_shipped_model_has_read_english():
    model, tokenizer = load_prose_model()
    ids = torch.tensor(
        [tokenizer.encode("If the object is not a string, an exception is raised.").ids]
    )
    with torch.no_grad():
        log_p = model(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None])
    assert -log_p.mean() < 0.7 * torch.tensor(512.0).log()
