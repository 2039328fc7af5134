"""BLOOM: ALiBi in place of position embeddings, and a norm right after the token embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ..bounds import AtLeast, Below, Divides, PositiveFloat, PositiveInt  # noqa: F401
from ..layers.blocks import make_norm
from ..positions.alibi import ALiBi
from ..shapes import checked
from .language_model import (  # noqa: F401
    ExpertsConfig,
    LanguageModel,
    LanguageModelConfig,
    LatentConfig,
    Scaling,
)

__all__ = ["Bloom", "BloomConfig"]


@dataclass(frozen=True, kw_only=True)
class BloomConfig(LanguageModelConfig):
    """Sizes of a BLOOM; its choices are the defaults.

    Raises: TypeError or ValueError that name the field.
    Source: Le Scao et al. 2022 (BLOOM), section 3.2.
    """

    activation: str = "gelu_tanh"
    norm_placement: str = "pre"
    positions: Literal["alibi"] = "alibi"
    scale_embedding: bool = False
    pad_id: Annotated[int, AtLeast(0), Below("vocab_size")] | None = None


class Bloom(LanguageModel):
    """A `LanguageModel` whose token embeddings are normalized, called in the same way.

    ALiBi's distances count real tokens alone, so that padding anywhere leaves a text's logits as they are.

    Shapes: as LanguageModel.
    Raises: TypeError or ValueError that name the argument.
    Source: Le Scao et al. 2022 (BLOOM), section 3.2; transformers' BloomModel.
    """

    @checked
    def __init__(self, config: BloomConfig) -> None:
        super().__init__(config)
        self.embedding.norm = make_norm(config)
        self.alibi = ALiBi(config.num_heads)
        for layer in self.layers:
            layer.attention.positions = None  # the bias is made once, from positions of real tokens
