"""The masks of a permutation language model: who may attend to whom, when tokens are predicted in any order."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..bounds import AtLeast, Below, PositiveInt
from ..shapes import checked

__all__ = ["permutation_masks", "target_mapping"]


@checked
def permutation_masks(
    order: Annotated[Int[Tensor, "B L"], AtLeast(0), Below("L")],
    predicted: Bool[Tensor, "B L"] | None = None,
    functional: Bool[Tensor, "B L"] | None = None,
) -> tuple[Bool[Tensor, "B 1 L L"], Bool[Tensor, "B 1 L L"]]:
    """The content mask and the query mask of a factorization order; True: query i may attend to key j.

    order: a permutation of the positions in each row, the position that is predicted first at the front. The
    query stream predicts a token and attends to those before it in the order; the content stream has read it, and
    attends to it as well. predicted: the tokens that are to be predicted; all others are context, which every
    token attends to. functional: padding, separators and the like, which have their turn in the order
    although they are not predicted. Without `predicted` all tokens are predicted. Context attends to context
    alone, so that no layer carries a token to one before it in the order.

    A query that is first in the order and has no context attends to nothing: its row is fully masked.

    Shapes: order, predicted and functional (B, L) -> twice (B, 1, L, L).
    Raises: TypeError or ValueError that name the argument.
    Source: Yang et al. 2019 (XLNet), section 2.3 and figure 1; zihangdai/xlnet, data_utils.py, _local_perm.

    >>> content, query = permutation_masks(torch.tensor([[2, 0, 1]]))
    >>> query[0, 0].int().tolist()
    [[0, 0, 1], [1, 0, 1], [0, 0, 0]]
    """
    step = order.argsort(dim=-1)  # B L: when each position's turn comes
    query = step[:, None, :] < step[:, :, None]  # B L L
    if predicted is not None:
        hidden = predicted if functional is None else predicted | functional  # B L
        query = (query & hidden[:, :, None]) | ~hidden[:, None, :]
    content = query | torch.eye(order.shape[1], dtype=torch.bool, device=order.device)
    return content[:, None], query[:, None]


@checked
def target_mapping(
    targets: Annotated[Int[Tensor, "B M"], AtLeast(0), Below("length")], length: PositiveInt
) -> Float[Tensor, "B M L"]:
    """One row per target, 1 at its position and 0 elsewhere, for every sequence of the batch.

    Shapes: targets (B, M) -> (B, M, L), float32.
    Raises: TypeError or ValueError that name the argument.
    Source: Yang et al. 2019 (XLNet), section 2.3, "Partial Prediction".

    >>> target_mapping(torch.tensor([[2], [0]]), 3).int().tolist()
    [[[0, 0, 1]], [[1, 0, 0]]]
    """
    return (targets[..., None] == torch.arange(length, device=targets.device)).float()
