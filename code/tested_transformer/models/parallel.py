"""A decoder-only model whose attention and feed-forward network stand side by side: GPT-J, GPT-NeoX, Falcon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal  # noqa: F401  (inherited annotations are read in this module, too)

import torch
from torch import nn

from ..bounds import AtLeast, Below, Divides, PositiveFloat, PositiveInt  # noqa: F401
from ..layers.blocks import EncoderLayer, make_norm
from ..layers.parallel_layer import ParallelLayer
from ..shapes import checked
from .language_model import (  # noqa: F401
    ExpertsConfig,
    LanguageModel,
    LanguageModelConfig,
    LatentConfig,
    Scaling,
)

__all__ = ["ParallelLanguageModel", "ParallelLanguageModelConfig"]


@dataclass(frozen=True, kw_only=True)
class ParallelLanguageModelConfig(LanguageModelConfig):
    """Sizes and choices of a model of parallel layers.

    GPT-J is num_parallel_norms=1, position_layout="interleaved", attention_bias=False, output_bias=True;
    GPT-NeoX and Pythia are num_parallel_norms=2, position_layout="halves". Both have a rotary_dim of a
    quarter of each head's features.

    Raises: TypeError or ValueError that name the field.
    Source: Wang and Komatsuzaki 2021 (GPT-J); Black et al. 2022 (GPT-NeoX-20B), section 2.1.
    """

    num_parallel_norms: Literal[0, 1, 2] = 1  # 0: attention first, then the feed-forward network
    output_bias: bool = False  # of the output layer


class ParallelLanguageModel(LanguageModel):
    """A `LanguageModel` of parallel layers, called in the same way.

    Shapes: as LanguageModel.
    Raises: TypeError or ValueError that name the argument.
    Source: Wang and Komatsuzaki 2021 (GPT-J); Black et al. 2022 (GPT-NeoX-20B), section 2.1.
    """

    @checked
    def __init__(self, config: ParallelLanguageModelConfig) -> None:
        super().__init__(config)
        if config.head and config.output_bias:
            self.output.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def _make_layer(self, number: int, **options: Any) -> EncoderLayer | ParallelLayer:
        """The parts of a layer, side by side unless it has no parallel norms."""
        config, layer = self.config, super()._make_layer(number, **options)
        if not config.num_parallel_norms:
            return layer
        norms = [make_norm(config) for _ in range(config.num_parallel_norms)]
        return ParallelLayer(layer.attention, layer.feed_forward, *norms, dropout=config.dropout)
