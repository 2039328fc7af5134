"""Masked language modeling: which tokens are to be predicted, and what the model reads instead."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..bounds import AtLeast, Below, PositiveInt, Probability
from ..shapes import checked

__all__ = ["IGNORE", "MaskedTokens", "mask_tokens"]

IGNORE = -100  # the label of a token that is not to be predicted, as in F.cross_entropy


class MaskedTokens(NamedTuple):
    """What a masked language model reads, and what it is to predict: both (B, L)."""

    inputs: Tensor
    labels: Tensor


@checked
def mask_tokens(
    ids: Annotated[Int[Tensor, "B L"], AtLeast(0), Below("vocab_size")],
    special: Bool[Tensor, "B L"],
    generator: torch.Generator,
    *,
    mask_id: Annotated[int, AtLeast(0), Below("vocab_size")],
    vocab_size: PositiveInt,
    rate: Probability = 0.15,
) -> MaskedTokens:
    """Choose 15 % of each text's tokens: 80 % of them become [MASK], 10 % random, 10 % stay.

    special: True for what is never chosen, such as [CLS], [SEP] and padding. Of the n others, round(rate
    x n) are chosen, and at least one. A chosen token is the label at its position, also where it stays;
    all other labels are IGNORE. A random token is any of the vocabulary.

    Shapes: ids and special (B, L) -> inputs and labels (B, L).
    Raises: TypeError or ValueError that name the argument.
    Source: Devlin et al. 2019, section 3.1 and appendix A.1; a fixed count for each text as in
        google-research/bert, create_pretraining_data.py, which counts [CLS] and [SEP] in n as well.

    >>> ids = torch.tensor([[2, 7, 8, 9, 3]])  # [CLS] 7 8 9 [SEP]
    >>> generator = torch.Generator().manual_seed(3)
    >>> masked = mask_tokens(ids, ids < 5, generator, mask_id=4, vocab_size=10)
    >>> masked.inputs.tolist(), masked.labels.tolist()
    ([[2, 7, 8, 4, 3]], [[-100, -100, -100, 9, -100]])
    """
    places = {"generator": generator, "device": ids.device}
    available = (~special).sum(1)  # B
    count = (rate * available.double()).round().clamp(min=1).minimum(available)
    order = (
        torch.rand(ids.shape, **places).masked_fill(special, 2.0).argsort(dim=1)
    )  # specials last
    chosen = order.argsort(dim=1) < count[:, None]  # B L: those of the first ranks
    labels = ids.masked_fill(~chosen, IGNORE)
    draw = torch.rand(ids.shape, **places)  # B L
    random_ids = torch.randint(vocab_size, ids.shape, **places)  # B L
    inputs = ids.masked_fill(chosen & (draw < 0.8), mask_id)
    inputs = torch.where(chosen & (draw >= 0.9), random_ids.to(ids.dtype), inputs)
    return MaskedTokens(inputs, labels)
