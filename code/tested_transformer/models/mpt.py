"""MPT: ALiBi, no biases at all, and in some models queries, keys and values that are clamped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from ..bounds import AtLeast, Below, Divides, PositiveFloat, PositiveInt  # noqa: F401
from ..layers.blocks import EncoderLayer
from ..shapes import checked
from .language_model import (  # noqa: F401
    ExpertsConfig,
    LanguageModel,
    LanguageModelConfig,
    LatentConfig,
    Scaling,
)

__all__ = ["Mpt", "MptConfig"]


@dataclass(frozen=True, kw_only=True)
class MptConfig(LanguageModelConfig):
    """Sizes and choices of an MPT; most of its choices are the defaults.

    Raises: TypeError or ValueError that name the field.
    Source: MosaicML 2023 (Introducing MPT-7B).
    """

    activation: str = "gelu"
    bias: bool = False
    norm_placement: str = "pre"
    positions: Literal["alibi"] = "alibi"
    scale_embedding: bool = False
    pad_id: Annotated[int, AtLeast(0), Below("vocab_size")] | None = None
    clip_qkv: PositiveFloat | None = None  # the largest magnitude in queries, keys and values


class Mpt(LanguageModel):
    """A `LanguageModel` with MPT's options, called in the same way.

    Shapes: as LanguageModel.
    Raises: TypeError or ValueError that name the argument.
    Source: MosaicML 2023 (Introducing MPT-7B); transformers' MptModel.
    """

    @checked
    def __init__(self, config: MptConfig) -> None:
        super().__init__(config)

    def _make_layer(self, number: int, **options: Any) -> EncoderLayer:
        """A layer whose queries, keys and values are clamped if the configuration says so."""
        config, layer = self.config, super()._make_layer(number, **options)
        if config.clip_qkv is not None:
            for name in ("query", "key", "value"):
                linear = getattr(layer.attention, name)
                clipped = ClippedLinear(linear.in_features, linear.out_features, config.clip_qkv)
                setattr(layer.attention, name, clipped)
        return layer


class ClippedLinear(nn.Linear):
    """A linear layer without a bias whose outputs are clamped to [-limit, limit].

    Shapes: x (*batch, d_in) -> (*batch, d_out).
    Source: mosaicml/llm-foundry, clip_qkv.
    """

    def __init__(self, d_in: int, d_out: int, limit: float) -> None:
        super().__init__(d_in, d_out, bias=False)
        self.limit = limit

    def forward(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """Multiply, then clamp."""
        return super().forward(x).clamp(-self.limit, self.limit)
