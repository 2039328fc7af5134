"""RWKV-4: a language model whose layers are a WKV with token shift and a gated feed-forward network."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..bounds import PositiveInt
from ..layers.norms import LayerNorm
from ..layers.recurrent_state import RecurrentState
from ..layers.rwkv import ChannelMix, TimeMix
from ..shapes import checked
from .recurrent_language_model import (  # noqa: F401
    PositiveFloat,
    RecurrentLanguageModel,
    RecurrentLanguageModelConfig,
)

__all__ = ["Rwkv", "RwkvConfig"]


@dataclass(frozen=True, kw_only=True)
class RwkvConfig(RecurrentLanguageModelConfig):
    """Sizes of an RWKV-4.

    Raises: TypeError or ValueError that name the field.
    Source: Peng et al. 2023 (RWKV); transformers' RwkvConfig.
    """

    d_inner: PositiveInt | None = None  # of the time mix; None: d_model
    d_ff: PositiveInt | None = None  # None: 4 x d_model
    chunk_size: PositiveInt = 32  # see chunked_wkv

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_inner is None:
            object.__setattr__(self, "d_inner", self.d_model)
        if self.d_ff is None:
            object.__setattr__(self, "d_ff", 4 * self.d_model)


class Rwkv(RecurrentLanguageModel):
    """A language model whose layers are those of RWKV-4, with a norm after the embedding as well.

    Shapes: as RecurrentLanguageModel.
    Raises: TypeError or ValueError that name the argument.
    Source: Peng et al. 2023 (RWKV); transformers' RwkvForCausalLM.

    >>> import torch
    >>> model = Rwkv(RwkvConfig(vocab_size=9, d_model=4, num_layers=1))
    >>> tuple(model(torch.tensor([[3, 4, 5]])).shape)
    (1, 3, 9)
    """

    @checked
    def __init__(self, config: RwkvConfig) -> None:
        super().__init__(config)
        self.embedding_norm = self._make_norm()

    def _embedded(self, ids: Tensor) -> Float[Tensor, "B L D"]:
        """The normalized embeddings."""
        return self.embedding_norm(self.embedding(ids))

    def _make_layer(self, number: int) -> RwkvLayer:
        return RwkvLayer(self.config)

    def _make_norm(self) -> LayerNorm:
        return LayerNorm(self.config.d_model, eps=self.config.norm_eps)

    def _make_final_norm(self) -> LayerNorm:
        return LayerNorm(self.config.d_model, eps=1e-5)  # whatever the others have


class RwkvLayer(nn.Module):
    """Time mix, then channel mix, each after a norm and in a residual connection.

    Shapes: x (B, L, D), real (B, L) -> (B, L, D).
    Source: as Rwkv.
    """

    def __init__(self, config: RwkvConfig) -> None:
        super().__init__()
        sizes = {"d_inner": config.d_inner, "chunk_size": config.chunk_size}
        self.time_mix = TimeMix(config.d_model, **sizes)
        self.channel_mix = ChannelMix(config.d_model, d_ff=config.d_ff)
        self.norms = nn.ModuleList(LayerNorm(config.d_model, eps=config.norm_eps) for _ in range(2))

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        *,
        real: Bool[Tensor, "B L"] | None,
        cache: RecurrentState | None,
    ) -> Float[Tensor, "B L D"]:
        """One layer."""
        before = RecurrentState() if cache is None else cache
        y, time = self.time_mix(
            self.norms[0](x), real=real, shift=before.get("time_shift"), state=before.get("wkv")
        )
        x = x + y
        y, channel = self.channel_mix(
            self.norms[1](x), real=real, shift=before.get("channel_shift")
        )
        if cache is not None:
            kept = {"time_shift": time["shift"], "channel_shift": channel["shift"]}
            cache.update(x.shape[1], wkv=time["state"], **kept)
        return x + y
