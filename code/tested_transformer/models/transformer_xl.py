"""Transformer-XL: a decoder that reads a text segment by segment and remembers hidden states of the last one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal  # noqa: F401

from ..bounds import AtLeast, Below, Divides, NonNegativeInt, PositiveInt  # noqa: F401
from ..errors import argument_error
from ..layers.blocks import EncoderLayer
from ..layers.cache import DecoderCache
from ..layers.relative_attention import TransformerXLAttention
from ..layers.segment_memory import SegmentMemory
from ..shapes import checked
from .language_model import (  # noqa: F401
    ExpertsConfig,
    IndexerConfig,
    LanguageModel,
    LanguageModelConfig,
    LatentConfig,
    PositiveFloat,
    Scaling,
)

__all__ = ["TransformerXL", "TransformerXLConfig"]


@dataclass(frozen=True, kw_only=True)
class TransformerXLConfig(LanguageModelConfig):
    """Sizes and choices of a Transformer-XL.

    memory_length: of how many tokens before the segment each layer remembers the hidden states. window: how many
        tokens a token attends to, itself included; without one, all of the memory and the segment so far.

    Raises: TypeError or ValueError that name the field.
    Source: Dai et al. 2019, section 3.
    """

    memory_length: NonNegativeInt = 64
    # What others choose otherwise:
    positions: Literal["none"] = "none"  # none but the distances in every layer
    qk_norm: Literal[False] = False
    latent: None = None
    experts: None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_kv_heads != self.num_heads:
            wanted = f"num_heads = {self.num_heads}: every head has distances of its own"
            raise argument_error(ValueError, "num_kv_heads", self.num_kv_heads, wanted)


class TransformerXL(LanguageModel):
    """A decoder whose attention goes by distances, and whose cache is a memory: use it in training, too.

        memory = model.new_cache()
        for segment in ids.split(length, dim=1):
            loss(model(segment, cache=memory)).backward()      # no gradient reaches back into the memory

    Called like a `LanguageModel`. Segment by segment gives the logits of the whole text at once exactly where
    the memory holds every state that is read: without a window, memory_length at least the number of
    tokens before the last segment; with one, memory_length >= window - 1, for a text of any length, though
    each layer lets information travel window - 1 tokens farther. Gradients differ all the same.

    Padding may stand on the left or on the right of a text. Distances count along the sequence, so padding in the
    middle, between a prompt and what follows it, makes them larger.

    Shapes: as LanguageModel.
    Raises: TypeError or ValueError that name the argument.
    Source: Dai et al. 2019, section 3.

    >>> import torch
    >>> config = TransformerXLConfig(vocab_size=9, d_model=4, num_heads=2, num_layers=1, memory_length=2)
    >>> model = TransformerXL(config)
    >>> memory = model.new_cache()
    >>> [tuple(model(ids, cache=memory).shape) for ids in torch.tensor([[3, 4, 5, 6]]).split(2, dim=1)]
    [(1, 2, 9), (1, 2, 9)]
    """

    @checked
    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(config)

    def _make_layer(self, number: int, **options: Any) -> EncoderLayer:
        """A layer with attention by distance."""
        config = self.config
        return EncoderLayer(
            config, options["alpha"], kind=TransformerXLAttention, d_head=config.d_head,
            bias=config.attention_bias, window=config.window,
        )  # fmt: skip

    @checked
    def new_cache(self, *, capacity: PositiveInt = 64) -> DecoderCache:
        """An empty memory for `forward`, of memory_length tokens in every layer, whatever the capacity."""
        own = partial(SegmentMemory, self.config.memory_length)
        return DecoderCache(len(self.layers), capacity=capacity, own=own)
