"""BitNet b1.58 as a whole model: Llama with squared ReLUs and a norm before each last linear layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from ..bounds import AtLeast, Below, Divides, PositiveFloat, PositiveInt  # noqa: F401
from ..layers.blocks import EncoderLayer
from ..layers.sub_norm import SubNormAttention, SubNormFeedForward
from ..shapes import checked
from .language_model import (  # noqa: F401
    ExpertsConfig,
    IndexerConfig,
    LanguageModel,
    LanguageModelConfig,
    LatentConfig,
    Scaling,
    attention_kind,
)

__all__ = ["BitNet", "BitNetConfig"]


@dataclass(frozen=True, kw_only=True)
class BitNetConfig(LanguageModelConfig):
    """Sizes and choices of a BitNet; most of its choices are the defaults.

    Raises: TypeError or ValueError that name the field.
    Source: Ma et al. 2024 (BitNet b1.58); transformers' BitNetConfig.
    """

    activation: Literal["relu"] = "relu"  # of the gate, and squared
    bias: Literal[False] = False
    norm: Literal["rms"] = "rms"
    norm_placement: Literal["pre"] = "pre"
    positions: Literal["rotary"] = "rotary"
    position_layout: Literal["halves"] = "halves"
    scale_embedding: bool = False
    pad_id: Annotated[int, AtLeast(0), Below("vocab_size")] | None = None


class BitNet(LanguageModel):
    """A `LanguageModel` with BitNet's norms, called in the same way.

    Its layers are plain linear ones, as in transformers without a quantization.

    Shapes: as LanguageModel.
    Raises: TypeError or ValueError that name the argument.
    Source: Ma et al. 2024 (BitNet b1.58); transformers' BitNetForCausalLM.
    """

    @checked
    def __init__(self, config: BitNetConfig) -> None:
        super().__init__(config)

    def _make_layer(self, number: int, **options: Any) -> EncoderLayer:
        """A layer with both norms."""
        config = self.config
        network = SubNormFeedForward(config.d_model, config.d_ff, norm_eps=config.norm_eps)
        own = attention_kind(config) | {"kind": SubNormAttention, "norm_eps": config.norm_eps}
        return EncoderLayer(config, feed_forward=network, **own, **options)
