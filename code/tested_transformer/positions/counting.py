"""Positions as plain numbers: counts, fractions and binary digits, and why they fail."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import (
    check_count,
    check_integer_tensor,
)
from .learned import check_indices
from .sinusoidal import check_floating

__all__ = ["binary_positions", "integer_positions", "unit_positions"]


def integer_positions(
    positions: Int[Tensor, "*batch"], *, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "*batch 1"]:
    """The position itself, as one number to add to every feature: it has no upper end.

    Shapes: (*batch) -> (*batch, 1).
    Raises: TypeError that names the argument.
    Source: chapter 6, where an experiment rejects it.
    """
    check_integer_tensor("positions", positions)
    check_floating("dtype", dtype)
    return positions.to(dtype).unsqueeze(-1)


def unit_positions(
    positions: Int[Tensor, "*batch"], length: int, *, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "*batch 1"]:
    """The position as a share of the way, 0 for the first token and 1 for the last of `length`.

    Shapes: (*batch) -> (*batch, 1); a length of 1 gives 0.
    Raises: TypeError or ValueError that name the argument.
    Source: chapter 6, where an experiment rejects it.
    """
    check_count("length", length)
    return integer_positions(positions, dtype=dtype) / max(length - 1, 1)


def binary_positions(
    positions: Int[Tensor, "*batch"], num_bits: int, *, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "*batch bits"]:
    """The position's binary digits, the lowest first: column b changes every 2^b positions.

    Shapes: (*batch) -> (*batch, num_bits).
    Raises: TypeError that names the argument; ValueError for a position that needs more bits.
    Source: chapter 6, where an experiment rejects it.

    >>> binary_positions(torch.tensor([3, 4]), 3).tolist()
    [[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    check_count("num_bits", num_bits)
    check_indices("positions", positions, 2**num_bits)
    check_floating("dtype", dtype)
    bits = torch.arange(num_bits, device=positions.device)
    return (positions.long().unsqueeze(-1) >> bits & 1).to(dtype)
