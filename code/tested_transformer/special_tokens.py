"""The token IDs that mean something to the model alone, and padding with one of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from .bounds import Int64
from .shapes import checked

__all__ = ["pad"]

PAD, BOS, EOS, UNK = range(4)
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")


@checked
def pad(
    sentences: Sequence[Sequence[Int64]], *, left: bool = False, value: Int64 = PAD
) -> Int[Tensor, "B L"]:
    """Sequences of several lengths as one tensor, padded on the right or on the left.

    Shapes: B lists -> (B, L), L the longest.
    Raises: TypeError or ValueError that name the argument.

    >>> pad([[5, 6], [7]]).tolist()
    [[5, 6], [7, 0]]
    """
    length = max((len(sentence) for sentence in sentences), default=0)
    ids = torch.full((len(sentences), length), value, dtype=torch.long)  # B L
    for row, sentence in enumerate(sentences):
        if len(sentence):
            positions = slice(length - len(sentence), length) if left else slice(len(sentence))
            ids[row, positions] = torch.as_tensor(sentence, dtype=torch.long)
    return ids
