"""Rotary positions for longer texts than a model was trained on: the same rotation, slower."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..bounds import Above, AtLeast, PositiveFloat, PositiveInt
from ..errors import argument_error
from ..shapes import check_fields, checked
from .rotary import RotaryPositions

__all__ = ["LinearScaling", "Llama3Scaling", "ScaledRotaryPositions", "YarnScaling"]

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


@dataclass(frozen=True)
class YarnScaling:
    """YaRN: divide low frequencies and keep high ones, as Llama 3 does, and sharpen the scores a little.

    A frequency that makes fast_turns turns in the texts of training, or more, stays; one that makes
    slow_turns or fewer is divided by the factor. Between the two the paper passes linearly in the turns;
    its authors' code, whose weights are in use, and this class pass linearly in the index of the pair,
    with both ends rounded outward to a whole index unless truncate is False.

    Queries and keys are multiplied by attention_factor, scores so by its square; None: 0.1 ln(factor) + 1.

    Raises: TypeError or ValueError that name the field.
    Source: Peng et al. 2023 (YaRN), sections 3.2 and 3.4; jquesnelle/yarn,
        `LlamaYaRNScaledRotaryEmbedding`.

    >>> import torch
    >>> from tested_transformer.positions.sinusoidal import frequencies
    >>> scaling = YarnScaling(4.0, original_length=4096)
    >>> frequencies(128)[[0, 63]] / scaling(frequencies(128))[[0, 63]]
    tensor([1., 4.], dtype=torch.float64)
    >>> round(scaling.attention_factor, 4)
    1.1386
    """

    factor: Factor
    original_length: PositiveInt
    fast_turns: Annotated[float, AtLeast("slow_turns")] = 32.0
    slow_turns: PositiveFloat = 1.0
    attention_factor: PositiveFloat | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        if self.attention_factor is None:
            object.__setattr__(self, "attention_factor", self._usual_attention_factor())

    def _usual_attention_factor(self) -> float:
        return 0.1 * math.log(self.factor) + 1.0

    @checked
    def __call__(self, frequency: Float[Tensor, " half"]) -> Float[Tensor, " half"]:
        """The frequencies after scaling, at least two. Shapes: (half) -> (half)."""
        half = len(frequency)
        if half < 2:
            wanted = "at least 2, between which a third would lie"
            raise argument_error(ValueError, "frequency", f"{half} of them", wanted)
        first, last = (
            self._index(self.fast_turns, frequency),
            self._index(self.slow_turns, frequency),
        )
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * half - 1)
        index = torch.arange(half, dtype=frequency.dtype, device=frequency.device)
        divided = ((index - first) / ((last - first) or 0.001)).clamp(0, 1)
        return frequency * (1 - divided) + frequency / self.factor * divided

    def _index(self, turns: float, frequency: Tensor) -> float:
        """Where among the pairs, counted from 0, a frequency makes so many turns in original_length."""
        step = math.log(frequency[0] / frequency[1])
        return math.log(self.original_length * float(frequency[0]) / (2 * math.pi * turns)) / step


Scaling = LinearScaling | Llama3Scaling | YarnScaling


class ScaledRotaryPositions(RotaryPositions):
    """RotaryPositions whose frequencies are scaled, and for YaRN queries and keys too. No parameters.

    Shapes: query (B, H, L, d), key (B, G, L, d), position_ids (L) or (B, L) -> query and key.
    Raises: TypeError or ValueError that name the argument.
    Source: as of the scaling.
    """

    @checked
    def __init__(self, d_head: PositiveInt, scaling: Scaling, **options: Any) -> None:
        super().__init__(d_head, **options)
        self.scaling = scaling

    def rotate(
        self,
        query: Float[Tensor, "B H L d"],
        key: Float[Tensor, "B G L d"],
        position_ids: Int[Tensor, " L"] | Int[Tensor, "#B L"],
    ) -> tuple[Float[Tensor, "B H L d"], Float[Tensor, "B G L d"]]:
        """Both rotated, each token by its own position, and multiplied by YaRN's attention_factor."""
        query, key = super().rotate(query, key, position_ids)
        factor, r = getattr(self.scaling, "attention_factor", 1.0), self.rotary_dim
        if factor == 1.0:
            return query, key
        return tuple(torch.cat((x[..., :r] * factor, x[..., r:]), -1) for x in (query, key))

    def _frequencies(self) -> Float[Tensor, " half"]:
        return self.scaling(super()._frequencies())

    def extra_repr(self) -> str:
        """What a printed model says of it."""
        return f"{super().extra_repr()}, scaling={self.scaling}"
