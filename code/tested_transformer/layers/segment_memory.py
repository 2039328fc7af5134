"""The memory of a Transformer-XL: hidden states of the tokens before the segment, without their gradients."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..bounds import AtLeast, Below, NonNegativeInt
from ..errors import argument_error
from ..shapes import checked

__all__ = ["SegmentMemory", "extend_memory"]


@checked
def extend_memory(
    memory: Float[Tensor, "B M D"] | None,
    hidden: Float[Tensor, "B L D"],
    memory_length: NonNegativeInt,
) -> Float[Tensor, "B N D"]:
    """What the next segment remembers: the last memory_length of all tokens so far, detached.

    A segment shorter than the memory keeps some of the old one; a longer one leaves none of it.

    Shapes: memory (B, M, D), or None before the first segment, hidden (B, L, D) -> (B, N, D), N at most
        memory_length.
    Raises: TypeError or ValueError that name the argument.
    Source: Dai et al. 2019 (Transformer-XL), section 3.2.
    """
    states = hidden if memory is None else torch.cat([memory, hidden], dim=1)  # B M+L D
    first = max(states.shape[1] - memory_length, 0)  # -memory_length would keep all where it is 0
    return states[:, first:].detach().clone()  # a copy, so that the rest can be freed


class SegmentMemory:
    """The inputs of one attention layer for the last `memory_length` tokens; a cache, in training too.

    Keys and values are computed again from these inputs in every segment, with the weights of today.
    Gradients stop here: what is remembered is detached. `truncate` can only take back what leaves the
    memory full.

    Shapes: hidden (B, M, D), M = min(length, memory_length); None before the first call.
    Raises: TypeError or ValueError that name the argument.
    Source: Dai et al. 2019 (Transformer-XL), section 3.2.
    """

    @checked
    def __init__(self, memory_length: NonNegativeInt) -> None:
        self.memory_length, self.length = memory_length, 0
        self.hidden: Tensor | None = None

    @property
    def batch(self) -> int | None:
        """How many sequences there are; None before the first call."""
        return None if self.hidden is None else self.hidden.shape[0]

    @property
    def width(self) -> int | None:
        """How many features a hidden state has; None before the first call."""
        return None if self.hidden is None else self.hidden.shape[2]

    @property
    def nbytes(self) -> int:
        """Bytes of the hidden states."""
        return 0 if self.hidden is None else self.hidden.nbytes

    @checked
    def num_keys(self, new: NonNegativeInt) -> int:
        """How many keys a segment of `new` tokens attends to."""
        return new if self.hidden is None else self.hidden.shape[1] + new

    @checked(like="self.hidden", B="self.batch", D="self.width")
    def append(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B S D"]:
        """Put the memory before a segment, and return both; then remember the segment.

        Raises: TypeError or ValueError if the segment does not fit what is there.
        """
        context = x if self.hidden is None else torch.cat([self.hidden, x], dim=1)  # B M+L D
        self.hidden = extend_memory(self.hidden, x, self.memory_length)
        self.length += x.shape[1]
        return context

    @checked(like="self.hidden")
    def reorder(self, rows: Annotated[Int[Tensor, " N"], AtLeast(0), Below("self.batch")]) -> None:
        """Keep these sequences of the batch, in this order; one may be named twice.

        Raises: TypeError or ValueError for rows that are no such numbers.
        """
        if self.hidden is None:
            raise RuntimeError("the memory is empty: append a segment first")
        self.hidden = self.hidden[rows]

    @checked
    def truncate(self, length: NonNegativeInt) -> None:
        """Forget everything after the first `length` tokens.

        Raises: TypeError or ValueError for a length that is not in 0 to the present one; ValueError if
            the memory of that time is gone.
        """
        left = self.num_keys(0) - (self.length - length)
        if length > self.length or left < min(length, self.memory_length):
            least = self.length if self.length > self.num_keys(0) else 0
            wanted = f"{least} to {self.length}: older states are gone"
            raise argument_error(ValueError, "length", length, wanted)
        if self.hidden is not None:
            self.hidden = self.hidden[:, :left]
        self.length = length
