"""YOCO: the lower layers keep little, and make one key/value cache that all the upper layers read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..bounds import AtLeast, Below, Divides, OneOf, PositiveFloat, PositiveInt, Where  # noqa: F401
from ..layers.blocks import (
    EncoderLayer,
    RealTokens,
    counted_positions,
    init_linear_layers,
    make_feed_forward,
    make_norm,
    make_residual,
    tokens_so_far,
)
from ..layers.cache import DecoderCache, WindowCache
from ..layers.config import NORMS
from ..layers.feed_forward import ACTIVATIONS
from ..layers.gated_retention import GatedRetention, RetentionState
from ..layers.shared_attention import SharedAttention, SharedKeyValues
from ..shapes import checked
from .language_model import (  # noqa: F401
    ExpertsConfig,
    LanguageModel,
    LanguageModelConfig,
    LatentConfig,
    Scaling,
    attention_positions,
    num_positions,
)

__all__ = ["Yoco", "YocoConfig"]


@dataclass(frozen=True, kw_only=True)
class YocoConfig(LanguageModelConfig):
    """Sizes and choices of a YOCO: one half of the layers below the cache, the other half above it.

    The lower half has gated retention, or causal attention with a window where one is given.

    Raises: TypeError or ValueError that name the field.
    Source: Sun et al. 2024 (YOCO), sections 2 and 3.
    """

    num_layers: Annotated[int, AtLeast(2), Where("an even number", lambda n: n % 2 == 0)] = 6
    temperature: PositiveFloat = 16.0  # see gated_log_decay
    chunk_size: PositiveInt = 64  # see chunked_retention
    # What others choose otherwise:
    activation: Annotated[str, OneOf(ACTIVATIONS)] = "swiglu"
    bias: bool = False
    norm_placement: Literal["pre"] = "pre"
    norm: Annotated[str, OneOf(NORMS)] = "rms"
    positions: Literal["sinusoidal", "learned", "none", "rotary"] = "rotary"
    qk_norm: Literal[False] = False
    latent: None = None
    experts: None = None

    @property
    def num_lower(self) -> int:
        """How many layers are below the cache; as many are above it."""
        return self.num_layers // 2


class Yoco(LanguageModel):
    """A decoder that caches once: its upper layers have no keys and values of their own.

    `layers` are all layers, the lower half first; `shared` makes the keys and values of what comes out of the
    lower half. Called like a `LanguageModel`. return_weights gives the weights of the upper layers, for
    the lower ones have none or only those of a window.

    Shapes: as LanguageModel.
    Raises: TypeError or ValueError that name the argument.
    Source: Sun et al. 2024 (YOCO), section 2; microsoft/unilm, YOCO/yoco/models/decoder/yoco.py.
    """

    @checked
    def __init__(self, config: YocoConfig) -> None:
        super().__init__(config)
        self.shared = SharedKeyValues(
            config.d_model, config.num_kv_heads, d_head=config.d_head, norm=make_norm(config),
            bias=config.attention_bias, positions=attention_positions(config),
        )  # fmt: skip
        init_linear_layers(self.shared, config.norm_placement, 1.0)

    @checked(like="self.embedding.table.weight", B="cache.real.shape.0", H="self.config.num_heads")
    def forward(
        self,
        ids: Annotated[Int[Tensor, "B L"], AtLeast(0), Below("self.config.vocab_size")],
        attention_mask: RealTokens | None = None,
        *,
        position_ids: Annotated[Int[Tensor, "#B L"], AtLeast(0)] | None = None,
        cache: DecoderCache | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L V"] | tuple[Float[Tensor, "B L V"], list[Tensor]]:
        """Predict the next tokens; with a cache, ids are the chunk that follows what it has seen."""
        x, upper = self._lower(ids, attention_mask, position_ids, cache)
        x, weights = self._upper(x, **upper, return_weights=return_weights)
        logits = x if self.output is None else self.output(x)  # B L V
        return (logits, weights) if return_weights else logits

    @checked(like="self.embedding.table.weight", B="cache.real.shape.0", nonempty="L")
    def prefill(
        self,
        ids: Annotated[Int[Tensor, "B L"], AtLeast(0), Below("self.config.vocab_size")],
        attention_mask: RealTokens | None = None,
        *,
        cache: DecoderCache,
    ) -> Float[Tensor, "B V"]:
        """Fill the cache, and predict the token after the last, for which the upper half reads one token.

        The logits are those of `forward` at its last token, and the cache is the same.
        """
        x, upper = self._lower(ids, attention_mask, None, cache)
        upper["position_ids"] = upper["position_ids"][:, -1:]
        x, _ = self._upper(x[:, -1:], **upper)  # B 1 D
        return (x if self.output is None else self.output(x))[:, 0]

    def _lower(
        self,
        ids: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        cache: DecoderCache | None,
    ) -> tuple[Float[Tensor, "B L D"], dict[str, Any]]:
        """The lower half for the new tokens, and what the upper half needs besides: the shared cache."""
        self._check_positions(position_ids)
        pad_id, length = self.config.pad_id, ids.shape[1]
        real, padded = tokens_so_far(ids, pad_id, attention_mask, cache)  # B S
        own = counted_positions(real, pad_id)[:, -length:] if length else real[:, :0].long()
        own = own if position_ids is None else position_ids
        x = self.embedding(ids, own, num_positions(real, position_ids))
        real = real if padded else None
        lower = self.layers[: self.config.num_lower]
        caches = [None] * (len(lower) + 1) if cache is None else [c.own for c in cache.layers]
        for layer, state in zip(lower, caches, strict=False):
            x = layer(x, real=real, position_ids=own, cache=state)
        key, value = self.shared(x, position_ids=own, cache=caches[-1])
        mask = None if real is None else real[:, None, None]  # B 1 1 S
        return x, {"key": key, "value": value, "mask": mask, "position_ids": own}

    def _upper(
        self, x: Float[Tensor, "B L D"], *, return_weights: bool = False, **options: Any
    ) -> tuple[Float[Tensor, "B L D"], list[Tensor]]:
        """The upper half: every layer attends to the same keys and values."""
        weights = []
        for layer in self.layers[self.config.num_lower :]:
            answer = layer(x, return_weights=return_weights, **options)
            x, *found = answer if return_weights else (answer,)
            weights += found
        return self.norm(x), weights

    def _make_layer(self, number: int, **options: Any) -> nn.Module:
        """Layer `number`: retention or a window below, attention to the shared keys above."""
        config, positions = self.config, options["positions"]
        own = {"d_head": config.d_head, "bias": config.attention_bias, "positions": positions}
        if number >= config.num_lower:
            return EncoderLayer(config, kind=SharedAttention, **own)
        if config.window is None:
            return RetentionLayer(config, **own)
        return WindowLayer(config, num_kv_heads=config.num_kv_heads, window=config.window, **own)

    @checked
    def new_cache(self, *, capacity: PositiveInt = 64) -> DecoderCache:
        """An empty cache: a state or a window per lower layer, then the keys and values of the upper ones."""
        cache = DecoderCache(self.config.num_lower + 1, capacity=capacity)
        window = self.config.window
        make = RetentionState if window is None else partial(WindowCache, window)
        for layer in cache.layers[:-1]:
            layer.own = make()
        return cache

    def reset_parameters(self) -> None:
        """Initialize the weights, as LanguageModel does."""
        super().reset_parameters()
        if hasattr(self, "shared"):  # LanguageModel calls this before there is one
            init_linear_layers(self.shared, self.config.norm_placement, 1.0)


class RetentionLayer(nn.Module):
    """Gated retention, then the feed-forward network, each with its residual connection.

    Shapes: x (B, L, D), real (B, S), S tokens so far -> (B, L, D).
    Source: as Yoco.
    """

    def __init__(self, config: YocoConfig, **options: Any) -> None:
        super().__init__()
        self.retention = GatedRetention(
            config.d_model, config.num_heads, temperature=config.temperature,
            norm_eps=config.norm_eps, chunk_size=config.chunk_size, **options,
        )  # fmt: skip
        self.feed_forward = make_feed_forward(config)
        self.residuals = nn.ModuleList(make_residual(config, 1.0) for _ in range(2))

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        *,
        real: Bool[Tensor, "B S"] | None,
        position_ids: Int[Tensor, "#B L"],
        cache: RetentionState | None,
    ) -> Float[Tensor, "B L D"]:
        """One layer."""
        real = None if real is None else real[:, real.shape[1] - x.shape[1] :]
        own = {"real": real, "position_ids": position_ids, "cache": cache}
        x = self.residuals[0](x, lambda x: self.retention(x, **own))
        return self.residuals[1](x, self.feed_forward)


class WindowLayer(EncoderLayer):
    """Causal attention with a window, then the feed-forward network.

    Shapes: x (B, L, D), real (B, S), S tokens so far -> (B, L, D).
    Source: as Yoco.
    """

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        *,
        real: Bool[Tensor, "B S"] | None,
        position_ids: Int[Tensor, "#B L"],
        cache: Any,
    ) -> Float[Tensor, "B L D"]:
        """One layer; of `real` the columns of the keys that are left count, the last."""
        keys = x.shape[1] if cache is None else cache.num_keys(x.shape[1])
        mask = None if real is None else real[:, None, None, real.shape[1] - keys :]
        return super().forward(x, mask=mask, causal=True, position_ids=position_ids, cache=cache)
