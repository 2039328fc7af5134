"""The exercises of chapter 9: a right answer passes, the usual mistakes are named."""

import torch
from torch.nn.functional import cross_entropy

from tested_transformer import check
from tested_transformer.analysis.counts import count_parameters
from tested_transformer.exercises.ch09 import COUNT
from tested_transformer.models.transformer import TransformerConfig


def embed(ids, table, positions):
    return table[ids] * table.shape[1] ** 0.5 + positions[: ids.shape[1]]


def masks(source, target, pad_id):
    own = (target != pad_id)[:, None, None, :].expand(-1, -1, target.shape[1], -1)
    return own.tril(), (source != pad_id)[:, None, None, :]


def decoder_layer(x, memory, own, cross, think, norm):
    x = norm(x + own(x))
    x = norm(x + cross(x, memory))
    return norm(x + think(x))


def count(vocab, d_model, d_ff, encoder_layers, decoder_layers):
    attention = 4 * d_model * (d_model + 1)
    network = 2 * d_model * d_ff + d_ff + d_model
    encoder = attention + network + 4 * d_model
    decoder = 2 * attention + network + 6 * d_model
    return vocab * d_model + encoder_layers * encoder + decoder_layers * decoder


def loss(logits, answers, pad_id):
    return cross_entropy(logits.mT, answers, ignore_index=pad_id)


SOLUTIONS = {
    "ch09.embed": embed,
    "ch09.masks": masks,
    "ch09.decoder_layer": decoder_layer,
    "ch09.count_parameters": count,
    "ch09.loss": loss,
}


def test_the_count_is_that_of_the_package():
    for case in COUNT.draw(0):
        sizes = case.arguments
        if not (sizes["encoder_layers"] and sizes["decoder_layers"]):
            continue
        config = TransformerConfig(
            sizes["vocab"], d_model=sizes["d_model"], num_heads=1, d_ff=sizes["d_ff"],
            num_encoder_layers=sizes["encoder_layers"], num_decoder_layers=sizes["decoder_layers"],
        )  # fmt: skip
        assert COUNT.reference(**sizes) == count_parameters(config).total


def test_the_symptoms_of_wrong_counts():
    """The numbers in the mutants' symptoms."""
    base = COUNT.draw(0)[4].arguments
    wrong = {m.name: m.candidate(**base) - COUNT.reference(**base) for m in COUNT.mutants}
    assert list(wrong.values()) == [18_944_000, -67_584, -6_309_888, 2048]


def test_masks_may_be_given_in_any_shape_that_broadcasts():
    def whole(source, target, pad_id):
        own, cross = masks(source, target, pad_id)
        return own, cross.expand(-1, 1, target.shape[1], -1)

    assert check("ch09.masks", whole).passed
    assert torch.is_tensor(masks(torch.ones(1, 2), torch.ones(1, 3), 0)[0])
