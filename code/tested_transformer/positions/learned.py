"""Learned positions: an embedding for each position, as in BERT and GPT."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ..bounds import AtLeast, Below, NonNegativeInt, PositiveInt
from ..shapes import checked
from .protocol import PositionScheme

__all__ = ["LearnedPositions", "OffsetPositions"]


class LearnedPositions(PositionScheme):
    """One trained vector per position, and none past max_length; `embed` adds them.

    The parameter `weight` (max_length, D) starts as noise of standard deviation 0.02.

    Shapes: (*batch, L) -> (*batch, L, D).
    Raises: TypeError or ValueError that name the argument; ValueError for a position below 0 or
        not below max_length.
    Source: Gehring et al. 2017, section 3.1; Devlin et al. 2019, section 3.
    """

    @checked
    def __init__(self, max_length: PositiveInt, d_model: PositiveInt) -> None:
        super().__init__()
        self.max_length, self.d_model = max_length, d_model
        self.weight = nn.Parameter(torch.empty(max_length, d_model).normal_(std=0.02))

    @checked(like="self.weight")
    def forward(
        self, position_ids: Annotated[Int[Tensor, "*batch L"], AtLeast(0), Below("self.max_length")]
    ) -> Float[Tensor, "*batch L D"]:
        """The vectors of these positions."""
        return functional.embedding(position_ids, self.weight)

    @checked(like="self.weight", any_dtype="x", D="self.d_model")
    def embed(
        self,
        x: Float[Tensor, "*batch L D"],
        position_ids: Int[Tensor, " L"] | Int[Tensor, "*#batch L"],
    ) -> Float[Tensor, "*batch L D"]:
        """x + the vectors of its positions. Shapes: (*batch, L, D) -> (*batch, L, D)."""
        return x + self(position_ids).to(x.dtype)


class OffsetPositions(LearnedPositions):
    """LearnedPositions whose first `offset` vectors belong to no position, as in BART, which has two.

    fairseq counted positions from the padding index + 1, and files have kept the rows before. The parameter
    `weight` is (max_length + offset, D).

    Shapes: (*batch, L) -> (*batch, L, D).
    Raises: as LearnedPositions.
    Source: Lewis et al. 2020 (BART); transformers' BartLearnedPositionalEmbedding.
    """

    @checked
    def __init__(
        self, max_length: PositiveInt, d_model: PositiveInt, *, offset: NonNegativeInt
    ) -> None:
        super().__init__(max_length + offset, d_model)
        self.max_length, self.offset = max_length, offset

    @checked(like="self.weight")
    def forward(
        self, position_ids: Annotated[Int[Tensor, "*batch L"], AtLeast(0), Below("self.max_length")]
    ) -> Float[Tensor, "*batch L D"]:
        """The vectors of these positions."""
        return functional.embedding(position_ids + self.offset, self.weight)
