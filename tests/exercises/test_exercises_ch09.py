"""What is special to the exercises of chapter 9."""

import torch

from solutions import chapter_solutions
from tested_transformer import check
from tested_transformer.analysis.counts import count_parameters
from tested_transformer.exercises.ch09 import COUNT
from tested_transformer.models.transformer import TransformerConfig

SOLUTIONS = chapter_solutions()
masks = SOLUTIONS["ch09.masks"]


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
    """How many parameters each mistake counts too many, in the paper's model."""
    base = COUNT.draw(0)[4].arguments
    wrong = {m.name: m.candidate(**base) - COUNT.reference(**base) for m in COUNT.mutants}
    assert list(wrong.values()) == [18_944_000, -67_584, -6_309_888, 2048]


def test_masks_may_be_given_in_any_shape_that_broadcasts():
    def whole(source, target, pad_id):
        own, cross = masks(source, target, pad_id)
        return own, cross.expand(-1, 1, target.shape[1], -1)

    assert check("ch09.masks", whole).passed
    assert torch.is_tensor(masks(torch.ones(1, 2), torch.ones(1, 3), 0)[0])
