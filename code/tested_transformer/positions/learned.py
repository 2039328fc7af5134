"""Learned positions: an embedding for each position, as in BERT and GPT."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ..bounds import PositiveInt
from ..errors import (
    argument_error,
)
from ..shapes import checked
from .protocol import PositionScheme

__all__ = ["LearnedPositions"]


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
        self.weight = nn.Parameter(torch.empty(max_length, d_model).normal_(std=0.02))

    @checked
    def forward(self, position_ids: Int[Tensor, "*batch L"]) -> Float[Tensor, "*batch L D"]:
        """The vectors of these positions."""
        check_indices("position_ids", position_ids, len(self.weight))
        return functional.embedding(position_ids, self.weight)

    def embed(
        self, x: Float[Tensor, "B L D"], position_ids: Int[Tensor, "*ids L"]
    ) -> Float[Tensor, "B L D"]:
        """x + the vectors of its positions. Shapes: (B, L, D) -> (B, L, D)."""
        return x + self(position_ids).to(x.dtype)


def check_indices(argument: str, indices: Tensor, size: int) -> None:
    """Raise unless all indices name a row of a table of that size.

    It looks at the values: on a GPU a wrong index would otherwise kill the process.
    """
    if indices.is_meta or torch.compiler.is_compiling() or not indices.numel():
        return
    low, high = (int(end) for end in indices.aminmax())
    if low < 0 or high >= size:
        came = low if low < 0 else high
        raise argument_error(
            ValueError, argument, came, f"0 to {size - 1}: the table has {size} rows"
        )
