"""Mamba and Mamba-2: language models of selective state spaces, without attention and without positions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from ..bounds import AtLeast, Divides, NonNegativeFloat, PositiveInt
from ..layers.norms import RMSNorm
from ..layers.selective_state_space import SelectiveStateSpace
from ..layers.state_space_duality import StateSpaceDuality
from ..shapes import checked
from .recurrent_language_model import (
    MixerLayer,
    PositiveFloat,
    RecurrentLanguageModel,
    RecurrentLanguageModelConfig,
)

__all__ = ["Mamba", "Mamba2", "Mamba2Config", "MambaConfig"]


@dataclass(frozen=True, kw_only=True)
class MambaConfig(RecurrentLanguageModelConfig):
    """Sizes and choices of a Mamba; see `SelectiveStateSpace`.

    Raises: TypeError or ValueError that name the field.
    Source: Gu and Dao 2023 (Mamba); transformers' MambaConfig.
    """

    num_states: PositiveInt = 16
    d_inner: PositiveInt | None = None  # None: 2 x d_model
    rank: PositiveInt | None = None  # None: d_model / 16, rounded up
    width: PositiveInt = 4  # of the convolution
    bias: bool = False  # in the first and the last linear layer of a block
    conv_bias: bool = True
    method: Literal["zoh", "euler"] = "euler"  # see discretize
    chunk_size: PositiveInt = 8
    # What others choose otherwise:
    float32_residual: bool = True
    tied_output: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_inner is None:
            object.__setattr__(self, "d_inner", 2 * self.d_model)
        if self.rank is None:
            object.__setattr__(self, "rank", math.ceil(self.d_model / 16))


class Mamba(RecurrentLanguageModel):
    """A language model whose layers are Mamba blocks.

    Shapes: as RecurrentLanguageModel.
    Raises: TypeError or ValueError that name the argument.
    Source: Gu and Dao 2023 (Mamba); transformers' MambaForCausalLM.

    >>> import torch
    >>> model = Mamba(MambaConfig(vocab_size=9, d_model=4, num_layers=1))
    >>> tuple(model(torch.tensor([[3, 4, 5]])).shape)
    (1, 3, 9)
    """

    @checked
    def __init__(self, config: MambaConfig) -> None:
        super().__init__(config)

    def _make_layer(self, number: int) -> MixerLayer:
        config = self.config
        mixer = SelectiveStateSpace(
            config.d_model, num_states=config.num_states, d_inner=config.d_inner,
            rank=config.rank, width=config.width, bias=config.bias, conv_bias=config.conv_bias,
            method=config.method, chunk_size=config.chunk_size,
        )  # fmt: skip
        return MixerLayer(self._make_norm(), mixer)

    def _make_norm(self) -> RMSNorm:
        return RMSNorm(self.config.d_model, eps=self.config.norm_eps)


@dataclass(frozen=True, kw_only=True)
class Mamba2Config(RecurrentLanguageModelConfig):
    """Sizes and choices of a Mamba-2; see `StateSpaceDuality`.

    Raises: TypeError or ValueError that name the field.
    Source: Dao and Gu 2024 (Mamba-2); transformers' Mamba2Config.
    """

    num_heads: PositiveInt = 16
    d_head: PositiveInt = 64
    num_states: PositiveInt = 128
    num_groups: Annotated[int, AtLeast(1), Divides("num_heads")] = 1
    width: PositiveInt = 4  # of the convolution
    bias: bool = False  # in the first and the last linear layer of a block
    conv_bias: bool = True
    step_min: NonNegativeFloat = 0.0
    step_max: PositiveFloat | None = None  # None: no upper bound
    chunk_size: PositiveInt = 64
    # What others choose otherwise:
    float32_residual: bool = True


class Mamba2(RecurrentLanguageModel):
    """A language model whose layers are Mamba-2 blocks.

    Shapes: as RecurrentLanguageModel.
    Raises: TypeError or ValueError that name the argument.
    Source: Dao and Gu 2024 (Mamba-2); transformers' Mamba2ForCausalLM.

    >>> import torch
    >>> model = Mamba2(Mamba2Config(vocab_size=9, d_model=4, num_layers=1, num_heads=2, d_head=4))
    >>> tuple(model(torch.tensor([[3, 4, 5]])).shape)
    (1, 3, 9)
    """

    @checked
    def __init__(self, config: Mamba2Config) -> None:
        super().__init__(config)

    def _make_layer(self, number: int) -> MixerLayer:
        config = self.config
        mixer = StateSpaceDuality(
            config.d_model, config.num_heads, config.d_head, num_states=config.num_states,
            num_groups=config.num_groups, width=config.width, bias=config.bias,
            conv_bias=config.conv_bias, step_min=config.step_min,
            step_max=config.step_max, norm_eps=config.norm_eps,
            chunk_size=config.chunk_size,
        )  # fmt: skip
        return MixerLayer(self._make_norm(), mixer)

    def _make_norm(self) -> RMSNorm:
        return RMSNorm(self.config.d_model, eps=self.config.norm_eps)
