"""Learning a score from comparisons: which of two answers is preferred."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from ..bounds import AtLeast, AtMost
from ..shapes import checked

__all__ = ["bradley_terry_loss"]


@checked(nonempty="B")
def bradley_terry_loss(
    first: Float[Tensor, " B"],
    second: Float[Tensor, " B"],
    preference: Annotated[Float[Tensor, " B"], AtLeast(0), AtMost(1)] | None = None,
) -> Float[Tensor, ""]:
    """The cross-entropy of comparisons, where the first answer wins with probability sigmoid(first - second).

    preference: 1 where the first one was preferred, 0 where the second was, 0.5 for a tie; 1 by default. The
    loss knows differences only: a constant added to all scores changes nothing.

    Shapes: first, second and preference (B) -> (), the mean, in at least float32.
    Raises: TypeError or ValueError that name the argument.
    Source: Bradley and Terry 1952; as a reward model's loss: Stiennon et al. 2020.

    >>> bradley_terry_loss(torch.tensor([0.0]), torch.tensor([0.0]))  # ln 2
    tensor(0.6931)
    """
    wide = torch.promote_types(first.dtype, torch.float32)
    margin = first.to(wide) - second.to(wide)
    wins = -functional.logsigmoid(margin)
    if preference is None:
        return wins.mean()
    return (preference * wins - (1 - preference) * functional.logsigmoid(-margin)).mean()
