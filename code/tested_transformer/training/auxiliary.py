"""Auxiliary losses of a deep character Transformer: every layer predicts, and more than one character."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..bounds import AtLeast, AtMost, PositiveInt
from ..shapes import checked
from .losses import cross_entropy

__all__ = ["auxiliary_loss", "layer_weights"]

Progress = Annotated[float, AtLeast(0), AtMost(1)]
NonNegativeFloat = Annotated[float, AtLeast(0)]


@checked
def layer_weights(num_layers: PositiveInt, progress: Progress) -> Float[Tensor, " n"]:
    """1 for each layer whose loss counts, else 0: layer l of n stops after l/2n of the training.

    The last layer always counts. progress: the share of the training that is done, 0 to 1.

    Shapes: -> (n).
    Raises: TypeError or ValueError that name the argument.
    Source: Al-Rfou et al. 2019, "Intermediate Layer Losses".

    >>> layer_weights(4, 0.2)
    tensor([0., 1., 1., 1.])
    """
    layer = torch.arange(1, num_layers + 1)
    counts = 2 * num_layers * progress < layer
    counts[-1] = True
    return counts.float()


@checked
def auxiliary_loss(
    logits: Float[Tensor, "n K B L V"],
    ids: Int[Tensor, "B L"],
    *,
    progress: Progress,
    extra_weight: NonNegativeFloat = 0.5,
) -> Float[Tensor, ""]:
    """The losses of all layers that still count, and of all targets, in one weighted sum.

    At position t, target k = 0, 1, ... is the character k + 1 positions later, and its loss is the mean over the
    positions that have one. The next character, k = 0, counts in full, each further one extra_weight times.

    Shapes: logits (n, K, B, L, V), of n layers and K targets, ids (B, L), that were read -> ().
    Raises: TypeError or ValueError that name the argument.
    Source: Al-Rfou et al. 2019, "Auxiliary Losses".

    >>> logits = torch.zeros(2, 1, 1, 3, 4)  # two layers, one target, four characters
    >>> auxiliary_loss(logits, torch.tensor([[3, 0, 2]]), progress=0.0).item()  # 2 log 4
    2.7725887298583984
    """
    num_layers, num_targets, _, length, _ = logits.shape
    total = logits.new_zeros((), dtype=torch.promote_types(logits.dtype, torch.float32))
    for layer, counts in enumerate(layer_weights(num_layers, progress).tolist()):
        for k in range(num_targets if counts else 0):
            known = max(length - k - 1, 0)  # positions whose target is in the text
            loss = cross_entropy(logits[layer, k, :, :known], ids[:, k + 1 :], ignore=None)
            total = total + (extra_weight if k else 1.0) * loss
    return total
