"""Sinusoidal positions."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..bounds import AtLeast, PositiveFloat, PositiveInt, Where
from ..shapes import checked
from .protocol import PositionScheme

__all__ = ["SinusoidalPositions", "shift_matrix", "sinusoidal_positions"]

LAYOUTS = ("interleaved", "halves")
Layout = Literal[LAYOUTS]
FloatDtype = Annotated[
    torch.dtype, Where("a floating point dtype", lambda dtype: dtype.is_floating_point, TypeError)
]
EVEN = Where("an even number: each sine needs its cosine", lambda size: size % 2 == 0)

# --- Sinusoids ------------------------------------------------------------------------------------


@checked
def sinusoidal_positions(
    positions: Int[Tensor, "*batch"],
    d_model: PositiveInt,
    *,
    base: PositiveFloat = 10000.0,
    layout: Layout = "interleaved",
    dtype: FloatDtype = torch.float32,
) -> Float[Tensor, "*batch D"]:
    """One vector a position: the sine and cosine of D/2 angles, the i-th of them pos / base^(2i/D).

    layout: "interleaved" puts each cosine beside its sine (the paper), "halves" all sines before all
    cosines (Tensor2Tensor). An odd D ends with one cosine fewer. Nothing is stored, so no position is too
    large. Angles are made in float64: in float32 the numbers around 100,000 lie 1/128 apart, and the
    sine of such an angle is as wrong.

    Shapes: (*batch) -> (*batch, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Vaswani et al. 2017, section 3.5.

    >>> sinusoidal_positions(torch.tensor([0, 1]), 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    angles = positions.double().unsqueeze(-1) * frequencies(d_model, base).to(positions.device)
    sines, cosines = angles.sin(), angles.cos()  # *batch ceil(D/2)
    if layout == "halves":
        return torch.cat((sines, cosines), -1)[..., :d_model].to(dtype)
    return torch.stack((sines, cosines), -1).flatten(-2)[..., :d_model].to(dtype)


def frequencies(d_model: PositiveInt, base: float = 10000.0) -> Float[Tensor, " pairs"]:
    """How far each pair of sine and cosine turns from a position to the next, in radians.

    1 / base^(2i/D) for i = 0 ... ceil(D/2) - 1, in float64: 1 for the first pair, close to 1/base
    for the last.

    Shapes: a number -> (ceil(D/2)).
    Raises: TypeError or ValueError that name the argument.
    Source: Vaswani et al. 2017, section 3.5.
    """
    columns = torch.arange(0, d_model, 2, dtype=torch.float64)  # 2i
    return base ** (-columns / d_model)


@checked
def shift_matrix(
    offset: int,
    d_model: Annotated[int, AtLeast(1), EVEN],
    *,
    base: PositiveFloat = 10000.0,
    layout: Layout = "interleaved",
    dtype: FloatDtype = torch.float32,
) -> Float[Tensor, "D D"]:
    """The matrix R that moves any position: R PE(pos) = PE(pos + offset), whatever pos is.

    Each pair (sine, cosine) turns by its own angle, offset x frequency. A sine without its cosine
    cannot be turned, so D must be even.

    Shapes: numbers -> (D, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Vaswani et al. 2017, section 3.5, the sentence about a fixed offset k.
    """
    angles = offset * frequencies(d_model, base)
    halves = layout == "halves"
    sine = torch.arange(d_model // 2) * (1 if halves else 2)  # the columns of the sines
    cosine = sine + (d_model // 2 if halves else 1)
    turn = torch.zeros(d_model, d_model, dtype=torch.float64)
    turn[sine, sine] = turn[cosine, cosine] = angles.cos()
    turn[sine, cosine] = angles.sin()  # sin(a + b) = sin a cos b + cos a sin b
    turn[cosine, sine] = -angles.sin()  # cos(a + b) = cos a cos b - sin a sin b
    return turn.to(dtype)


class SinusoidalPositions(PositionScheme):
    """`sinusoidal_positions` as a layer without parameters; `embed` adds them. Its dtype is the module's.

    Shapes: (*batch, L) -> (*batch, L, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Vaswani et al. 2017, section 3.5.
    """

    @checked
    def __init__(
        self, d_model: PositiveInt, *, base: PositiveFloat = 10000.0, layout: Layout = "interleaved"
    ) -> None:
        super().__init__()
        self.d_model, self.base, self.layout = d_model, base, layout
        self.register_buffer("like", torch.empty(0), persistent=False)  # follows .to(dtype)

    @checked(like="self.like")
    def forward(self, position_ids: Int[Tensor, "*batch L"]) -> Float[Tensor, "*batch L D"]:
        """The vectors of these positions."""
        return sinusoidal_positions(
            position_ids, self.d_model, base=self.base, layout=self.layout, dtype=self.like.dtype
        )

    @checked(D="self.d_model")
    def embed(
        self, x: Float[Tensor, "B L D"], position_ids: Int[Tensor, " L"] | Int[Tensor, "#B L"]
    ) -> Float[Tensor, "B L D"]:
        """x + the vectors of its positions. Shapes: (B, L, D) -> (B, L, D)."""
        return x + self(position_ids).to(x.dtype)
