"""Rotary positions for longer texts than a model was trained on: the same rotation, slower."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

from jaxtyping import Float
from torch import Tensor

from ..bounds import Above, AtLeast, PositiveFloat, PositiveInt
from ..shapes import check_fields, checked
from .rotary import RotaryPositions

__all__ = ["LinearScaling", "Llama3Scaling", "ScaledRotaryPositions"]

Factor = Annotated[float, AtLeast(1)]


@dataclass(frozen=True)
class LinearScaling:
    """Divide all frequencies by a factor, as if positions were that much closer together.

    Raises: TypeError or ValueError that name the field.
    Source: Chen et al. 2023 (Position Interpolation), equation 4.

    >>> import torch
    >>> LinearScaling(4.0)(torch.tensor([1.0, 0.5]))
    tensor([0.2500, 0.1250])
    """

    factor: Factor

    def __post_init__(self) -> None:
        check_fields(self)

    @checked
    def __call__(self, frequency: Float[Tensor, " half"]) -> Float[Tensor, " half"]:
        """The frequencies after scaling. Shapes: (half) -> (half)."""
        return frequency / self.factor


@dataclass(frozen=True)
class Llama3Scaling:
    """Divide low frequencies by a factor and keep high ones: those with turns enough in training.

    A frequency f makes original_length x f / (2 pi) turns in the texts of training. From
    high_freq_factor turns on it stays, up to low_freq_factor it is divided, and between the two it
    passes linearly from one to the other.

    Raises: TypeError or ValueError that name the field.
    Source: Llama Team 2024 (The Llama 3 Herd of Models); meta-llama/llama-models, `apply_scaling`.

    >>> import torch
    >>> scaling = Llama3Scaling(8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192)
    >>> scaling(torch.tensor([1.0, 8e-6]))
    tensor([1.0000e+00, 1.0000e-06])
    """

    factor: Factor
    low_freq_factor: PositiveFloat
    high_freq_factor: Annotated[float, Above("low_freq_factor")]
    original_length: PositiveInt

    def __post_init__(self) -> None:
        check_fields(self)

    @checked
    def __call__(self, frequency: Float[Tensor, " half"]) -> Float[Tensor, " half"]:
        """The frequencies after scaling. Shapes: (half) -> (half)."""
        turns = self.original_length * frequency / (2 * math.pi)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = kept.clamp(0, 1)
        return frequency * kept + frequency / self.factor * (1 - kept)


class ScaledRotaryPositions(RotaryPositions):
    """RotaryPositions whose frequencies are scaled. No parameters.

    Shapes: query (B, H, L, d), key (B, G, L, d), position_ids (L) or (B, L) -> query and key.
    Raises: TypeError or ValueError that name the argument.
    Source: as of the scaling.
    """

    @checked
    def __init__(
        self, d_head: PositiveInt, scaling: LinearScaling | Llama3Scaling, **options: Any
    ) -> None:
        super().__init__(d_head, **options)
        self.scaling = scaling

    def _frequencies(self) -> Float[Tensor, " half"]:
        return self.scaling(super()._frequencies())

    def extra_repr(self) -> str:
        """What a printed model says of it."""
        return f"{super().extra_repr()}, scaling={self.scaling}"
