"""GPT-OSS: learned sinks, a window in some layers, and a mixture of clamped experts in all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal  # noqa: F401  (inherited annotations are read in this module, too)

from jaxtyping import Bool, Float
from torch import Tensor

from ..bounds import AtLeast, Below, Divides, PositiveFloat, PositiveInt  # noqa: F401
from ..errors import argument_error
from ..layers.blocks import EncoderLayer
from ..layers.cache import DecoderCache, WindowCache
from ..layers.clamped_experts import ClampedExperts
from ..layers.sink_attention import SinkAttention
from ..shapes import checked
from .language_model import (  # noqa: F401
    ExpertsConfig,
    LanguageModel,
    LanguageModelConfig,
    LatentConfig,
    Scaling,
)

__all__ = ["GptOss", "GptOssConfig"]


@dataclass(frozen=True, kw_only=True)
class GptOssConfig(LanguageModelConfig):
    """Sizes and choices of a GPT-OSS; d_ff is the hidden width of each expert.

    Raises: TypeError or ValueError that name the field.
    Source: OpenAI 2025 (gpt-oss-120b and gpt-oss-20b model card), section 2.
    """

    num_experts: PositiveInt
    num_chosen: PositiveInt  # experts per token
    windowed: tuple[bool, ...] | None = None  # which layers have the window; None: 0, 2, 4 ...
    limit: PositiveFloat = 7.0  # see clamped_swiglu, as alpha
    alpha: PositiveFloat = 1.702

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.windowed is None:
            every_other = tuple(number % 2 == 0 for number in range(self.num_layers))
            object.__setattr__(self, "windowed", every_other)
        if len(self.windowed) != self.num_layers:
            wanted = f"one for each of {self.num_layers} layers"
            raise argument_error(ValueError, "windowed", f"{len(self.windowed)} bools", wanted)

    @property
    def windows(self) -> list[int | None]:
        """The window of each layer, if it has one."""
        return [self.window if windowed else None for windowed in self.windowed]


class GptOss(LanguageModel):
    """A `LanguageModel` of GPT-OSS's layers, called in the same way.

    Shapes: as LanguageModel.
    Raises: TypeError or ValueError that name the argument.
    Source: OpenAI 2025 (gpt-oss-120b and gpt-oss-20b model card), section 2; openai/gpt-oss,
        gpt_oss/torch/model.py.
    """

    @checked
    def __init__(self, config: GptOssConfig) -> None:
        super().__init__(config)

    def _make_layer(self, number: int, **options: Any) -> EncoderLayer:
        """A layer whose attention has sinks, and a window if it is its turn."""
        config = self.config
        experts = ClampedExperts(
            config.d_model, config.num_experts, config.num_chosen, config.d_ff,
            limit=config.limit, alpha=config.alpha,
        )  # fmt: skip
        return OwnKeysLayer(
            config, feed_forward=experts, kind=SinkAttention, num_kv_heads=config.num_kv_heads,
            d_head=config.d_head, window=config.windows[number], bias=config.attention_bias,
            **options,
        )  # fmt: skip

    @checked
    def new_cache(self, *, capacity: PositiveInt = 64) -> DecoderCache:
        """An empty cache for `forward`; layers with a window keep no more than the window."""
        cache = DecoderCache(len(self.layers), capacity=capacity)
        for layer, window in zip(cache.layers, self.config.windows, strict=True):
            if window is not None:
                layer.own = WindowCache(window)
        return cache


class OwnKeysLayer(EncoderLayer):
    """A layer in whose cache there may be fewer keys than in that of another.

    Shapes: as EncoderLayer; of the mask, (L, S) or (B, H, L, S), the columns of its own keys count, the last.
    Source: as GptOss.
    """

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        *,
        mask: Bool[Tensor, "#L #S"] | Bool[Tensor, "#B #H #L #S"] | None = None,
        cache: Any = None,
        **options: Any,
    ) -> Float[Tensor, "B L D"] | tuple[Float[Tensor, "B L D"], Float[Tensor, "B H L T"]]:
        """One layer; options: those of `EncoderLayer`."""
        if mask is not None and cache is not None:
            mask = mask[..., -cache.num_keys(x.shape[1]) :]
        return super().forward(x, mask=mask, cache=cache, **options)
