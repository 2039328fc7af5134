"""Positions as plain numbers: counts, fractions and binary digits, and why they fail."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..bounds import AtLeast, Below, Bound, PositiveInt
from ..shapes import checked
from .sinusoidal import FloatDtype


class FitsInBits(Bound):
    """A number that can be written with so many binary digits."""

    words = "a number of at most {} bits"
    holds = staticmethod(lambda value, bits: value >= 0 and value.bit_length() <= bits)


__all__ = ["binary_positions", "integer_positions", "unit_positions"]


@checked
def integer_positions(
    positions: Int[Tensor, "*batch"], *, dtype: FloatDtype = torch.float32
) -> Float[Tensor, "*batch 1"]:
    """The position itself, as one number to add to every feature: it has no upper end.

    Shapes: (*batch) -> (*batch, 1).
    Raises: TypeError that names the argument.
    Source: chapter 6, where an experiment rejects it.
    """
    return positions.to(dtype).unsqueeze(-1)


@checked
def unit_positions(
    positions: Annotated[Int[Tensor, "*batch"], AtLeast(0), Below("length")],
    length: PositiveInt,
    *,
    dtype: FloatDtype = torch.float32,
) -> Float[Tensor, "*batch 1"]:
    """The position as a share of the way, 0 for the first token and 1 for the last of `length`.

    Shapes: (*batch) -> (*batch, 1); a length of 1 gives 0.
    Raises: TypeError or ValueError that name the argument.
    Source: chapter 6, where an experiment rejects it.
    """
    return integer_positions(positions, dtype=dtype) / max(length - 1, 1)


@checked
def binary_positions(
    positions: Annotated[Int[Tensor, "*batch"], FitsInBits("num_bits")],
    num_bits: PositiveInt,
    *,
    dtype: FloatDtype = torch.float32,
) -> Float[Tensor, "*batch bits"]:
    """The position's binary digits, the lowest first: column b changes every 2^b positions.

    Shapes: (*batch) -> (*batch, num_bits).
    Raises: TypeError that names the argument; ValueError for a position that needs more bits.
    Source: chapter 6, where an experiment rejects it.

    >>> binary_positions(torch.tensor([3, 4]), 3).tolist()
    [[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    bits = torch.arange(num_bits, device=positions.device)
    return (positions.long().unsqueeze(-1) >> bits & 1).to(dtype)
