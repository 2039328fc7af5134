"""A language model without attention: every layer keeps a state of fixed size, however long the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from ..bounds import AtLeast, Below, PositiveFloat, PositiveInt
from ..layers.blocks import RealTokens, tokens_so_far
from ..layers.cache import DecoderCache
from ..layers.recurrent_state import RecurrentState
from ..shapes import check_fields, checked

__all__ = ["RecurrentLanguageModel", "RecurrentLanguageModelConfig"]


@dataclass(frozen=True, kw_only=True)
class RecurrentLanguageModelConfig:
    """What every recurrent language model needs to know.

    Raises: TypeError or ValueError that name the field.
    Source: chapter 20.
    """

    vocab_size: PositiveInt
    d_model: PositiveInt = 512
    num_layers: PositiveInt = 6
    norm_eps: PositiveFloat = 1e-5
    float32_residual: bool = (
        False  # keep the residual stream in float32 beside weights of half precision
    )
    tied_output: bool = False
    head: bool = True  # False: no output layer, the model returns the last hidden states

    def __post_init__(self) -> None:
        check_fields(self)


class RecurrentLanguageModel(nn.Module):
    """Predict every next token of a text: an embedding, recurrent layers, a norm, and the output layer.

    A family makes its layers by `_make_layer` and its norms by `_make_norm`. Padding is what attention_mask says
    (True or 1: a real token), anywhere in a text: it enters no state. There are no positions to count.

    Shapes: ids (B, L), attention_mask (B, S) for everything so far -> logits (B, L, V), without a head the last
        hidden states (B, L, D).
    Raises: TypeError or ValueError that name the argument.
    Source: chapter 20.
    """

    takes_positions = False

    @checked
    def __init__(self, config: RecurrentLanguageModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(self._make_layer(n) for n in range(config.num_layers))
        self.norm = self._make_final_norm()
        self.output = None
        if config.head:
            self.output = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.head and config.tied_output:
            self.output.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=0.02)

    @checked(like="self.embedding.weight", B="cache.real.shape.0")
    def forward(
        self,
        ids: Annotated[Int[Tensor, "B L"], AtLeast(0), Below("self.config.vocab_size")],
        attention_mask: RealTokens | None = None,
        *,
        cache: DecoderCache | None = None,
    ) -> Float[Tensor, "B L V"]:
        """Predict the next tokens; with a cache, ids are the chunk that follows what it has seen."""
        real, padded = tokens_so_far(ids, None, attention_mask, cache)
        real = real[:, real.shape[1] - ids.shape[1] :] if padded else None
        x = self._embedded(ids)
        x = x.float() if self.config.float32_residual and x.dtype.itemsize < 4 else x
        for number, layer in enumerate(self.layers):
            x = layer(x, real=real, cache=None if cache is None else cache.layers[number].own)
        x = self.norm(x.to(self.norm.weight.dtype))
        return x if self.output is None else self.output(x)  # B L V

    def _make_layer(self, number: int) -> nn.Module:
        """Layer `number`, counted from 0: called with x, real and cache."""
        raise NotImplementedError

    def _make_norm(self) -> nn.Module:
        """A norm of this family."""
        raise NotImplementedError

    def _make_final_norm(self) -> nn.Module:
        """The norm in front of the output layer."""
        return self._make_norm()

    def _embedded(self, ids: Tensor) -> Float[Tensor, "B L D"]:
        """What the first layer reads."""
        return self.embedding(ids)

    @checked
    def new_cache(self, *, capacity: PositiveInt = 64) -> DecoderCache:
        """An empty cache for `forward`: a state of fixed size in every layer, whatever the capacity."""
        return DecoderCache(len(self.layers), capacity=capacity, own=RecurrentState)


class MixerLayer(nn.Module):
    """A norm, then a mixer, in a residual connection: the layer of Mamba and Mamba-2.

    Shapes: x (B, L, D), real (B, L) -> (B, L, D).
    Source: Gu and Dao 2023 (Mamba).
    """

    def __init__(self, norm: nn.Module, mixer: nn.Module) -> None:
        super().__init__()
        self.norm, self.mixer = norm, mixer

    def forward(self, x: Float[Tensor, "B L D"], **options: Any) -> Float[Tensor, "B L D"]:
        """One layer; the stream keeps its dtype, the mixer computes in that of its weights."""
        return x + self.mixer(self.norm(x.to(self.norm.weight.dtype)), **options)
