"""How far information travels through layers of sparse attention: who can have heard of whom."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..errors import argument_error
from ..shapes import checked

__all__ = ["layers_to_reach"]


@checked
def layers_to_reach(*masks: Bool[Tensor, "L L"]) -> Int[Tensor, "L L"]:
    """Row i, column j: after how many layers position i can depend on token j; -1: never.

    The first layer attends by the first mask, the second by the second, and so on; after the last mask comes
    the first one again. Through its residual path a position knows itself from the beginning, and
    forgets nothing.

    Shapes: each mask (L, L), True where the query of the row attends to the key -> (L, L).
    Raises: TypeError or ValueError that name the argument.

    >>> layers_to_reach(torch.ones(4, 4).triu(-1).tril().bool())[3].tolist()  # itself and the one before
    [3, 2, 1, 0]
    """
    if not masks:
        raise argument_error(ValueError, "masks", masks, "at least one")
    known = torch.eye(len(masks[0]), device=masks[0].device)
    layers = torch.where(known > 0, 0, -1)
    layer = changed = 0
    while layer - changed < len(masks):  # until a whole round brings nothing new
        through = (masks[layer % len(masks)].float() @ known + known).clamp(max=1)
        layer += 1
        new = (through > 0) & (layers < 0)
        layers[new], known = layer, through
        changed = layer if new.any() else changed
    return layers
