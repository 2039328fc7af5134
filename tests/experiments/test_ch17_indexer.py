"""What the page about the indexer measures: the attention is the model's own, and training finds its best keys."""

import torch

from tested_transformer.experiments.ch13_prose import LENGTH, load_prose_model
from tested_transformer.experiments.ch17_indexer import (
    attention_of,
    best_keys,
    make_indexer,
    own_texts,
    recall_and_mass,
    scores_of,
    train_indexer,
)

MODEL, _ = load_prose_model()
TEXTS = own_texts(MODEL, 24, seed=1)


def test_the_texts_have_one_length_and_come_again():
    assert TEXTS.shape == (24, LENGTH)
    assert torch.equal(own_texts(MODEL, 24, seed=1), TEXTS)
    assert not torch.equal(own_texts(MODEL, 24, seed=2), TEXTS)


@torch.no_grad()
def test_the_weights_belong_to_the_inputs():
    x, weights = attention_of(MODEL, TEXTS[:2], layer=1)
    _, own = MODEL.layers[1].attention(x, causal=True, return_weights=True)
    torch.testing.assert_close(own, weights)


def test_recall_and_mass_by_hand():
    """Query 2 has the true best key 1, with weight 0.6; the indexer takes key 0, with weight 0.3."""
    weights = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.3, 0.6, 0.1]])[None, None]
    first = torch.tensor([[True, False, False]] * 3)[None]
    recall, mass = recall_and_mass(first, weights[:, :, 2:].expand(1, 1, 3, 3), 1)
    assert recall == 0.0
    assert abs(mass - 0.3) < 1e-6
    true = best_keys(weights.mean(1), 1)
    assert recall_and_mass(true, weights, 1)[0] == 1.0


def test_training_finds_the_best_keys():
    """More of them than an untrained indexer, and than the latest keys."""
    x, weights = attention_of(MODEL, TEXTS, layer=2)
    (x, new_x), (weights, new) = x.split((16, 8)), weights.split((16, 8))
    indexer = make_indexer(96, 8, seed=0)

    def recall(scores):
        return recall_and_mass(best_keys(scores, 8), new, 8)[0]

    before = recall(scores_of(indexer, new_x))
    losses = train_indexer(indexer, x, weights, steps=40)
    after = recall(scores_of(indexer, new_x))
    latest = recall(torch.arange(float(LENGTH)).expand(8, LENGTH, LENGTH).contiguous())
    assert losses[-1] < losses[0] / 2
    assert before < 0.45 < latest + 0.1 < after
