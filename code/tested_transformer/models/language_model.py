"""A decoder-only language model, such as GPT: it reads the tokens so far and predicts the next."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Annotated, Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..bounds import AtLeast, Below, Divides, PositiveInt
from ..functional.masks import causal_mask, combine_masks
from ..layers.blocks import (
    Embedding,
    EncoderLayer,
    init_embedding,
    init_linear_layers,
    init_output,
    make_norm,
    make_stack,
    position_ids,
    real_tokens,
)
from ..layers.cache import DecoderCache, WindowCache
from ..layers.config import BlockConfig
from ..layers.multi_head import head_size
from ..layers.residual import deepnorm_constants
from ..positions.alibi import ALiBi
from ..positions.protocol import PositionScheme
from ..positions.rotary import RotaryPositions
from ..shapes import checked

__all__ = ["LanguageModel", "LanguageModelConfig"]


@dataclass(frozen=True)
class LanguageModelConfig(BlockConfig):
    """Every size and choice of a decoder-only model.

    GPT-2 is norm_placement="pre", positions="learned", activation="gelu_tanh", scale_embedding=False,
    pad_id=None. Llama is norm_placement="pre", norm="rms", positions="rotary",
    position_layout="halves", activation="swiglu", bias=False, scale_embedding=False, pad_id=None.

    Raises: TypeError or ValueError that name the field.
    Source: Radford et al. 2019, section 2.3; Ainslie et al. 2023 for num_kv_heads.
    """

    vocab_size: PositiveInt
    _: KW_ONLY
    num_layers: PositiveInt = 6
    num_kv_heads: Annotated[int, AtLeast(1), Divides("num_heads")] | None = None  # None: num_heads
    d_head: PositiveInt | None = None  # None: d_model / num_heads
    window: PositiveInt | None = (
        None  # how many tokens a token attends to, itself and padding included
    )
    positions: Literal["sinusoidal", "learned", "none", "rotary", "alibi"] = "sinusoidal"
    pad_id: Annotated[int, AtLeast(0), Below("vocab_size")] | None = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        kv_heads = self.num_heads if self.num_kv_heads is None else self.num_kv_heads
        object.__setattr__(self, "num_kv_heads", kv_heads)
        object.__setattr__(self, "d_head", head_size(self.d_model, self.num_heads, self.d_head))


class LanguageModel(nn.Module):
    """Predict every next token of a text: encoder layers under a causal mask.

    Padding may stand left or right: it is masked, and a token's position counts the real tokens before
    it.

    Shapes: ids (B, L) -> logits (B, L, V), and the attention weights of every layer, each (B, H, L, S),
        with return_weights.
    Raises: TypeError or ValueError that name the argument.
    Source: Radford et al. 2018, section 3.1; Radford et al. 2019, section 2.3.

    >>> import torch
    >>> config = LanguageModelConfig(9, d_model=4, num_heads=2, num_layers=1, norm_placement="pre")
    >>> tuple(LanguageModel(config)(torch.tensor([[3, 4, 5]])).shape)
    (1, 3, 9)
    """

    @checked
    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        self.config = config
        deepnorm = config.norm_placement == "deepnorm"
        alpha, self._beta = deepnorm_constants(0, config.num_layers)[1] if deepnorm else (1.0, 1.0)
        scheme = attention_positions(config)
        # In a layer ALiBi counts along the sequence; with padding in it, the model counts real tokens.
        self.alibi = scheme if isinstance(scheme, ALiBi) and config.pad_id is not None else None
        layer = partial(
            EncoderLayer, config, alpha, num_kv_heads=config.num_kv_heads, d_head=config.d_head,
            window=config.window, positions=scheme if self.alibi is None else None,
        )  # fmt: skip
        self.embedding = Embedding(config.vocab_size, config)
        self.layers = make_stack(config, (layer() for _ in range(config.num_layers)))
        needs_norm = config.norm_placement in ("pre", "resi_dual")
        self.norm = make_norm(config) if needs_norm else None
        self.output = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tied_output:
            self.output.weight = self.embedding.table.weight
        self.reset_parameters()

    @checked(like="self.output.weight", B="cache.real.shape.0", H="self.config.num_heads")
    def forward(
        self,
        ids: Annotated[Int[Tensor, "B L"], AtLeast(0), Below("self.config.vocab_size")],
        *,
        mask: Bool[Tensor, "#L #T"] | Bool[Tensor, "#B #H #L #T"] | None = None,
        cache: DecoderCache | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L V"] | tuple[Float[Tensor, "B L V"], list[Tensor]]:
        """Predict the next tokens; with a cache, ids are the chunk that follows what it has seen.

        The mask hides more than the future and padding: (L, everything so far), or four axes.
        """
        length, real = ids.shape[1], real_tokens(ids, self.config.pad_id)
        real = real if cache is None else cache.extend(real)  # B S: everything so far
        positions = position_ids(real if self.config.pad_id is not None else real[:1])
        x = self.embedding(ids, positions[:, -length:], real.shape[1])
        caches = None if cache is None else [layer.own for layer in cache.layers]
        keys = length if cache is None else caches[0].num_keys(length)  # with a window not all S
        mask, causal = self._masks(mask, real, length, keys)
        x, weights = self.layers(
            x, norm=self.norm, caches=caches, mask=mask, causal=causal,
            bias=self._bias(positions[:, -keys:], length), position_ids=positions[:, -length:],
            return_weights=return_weights,
        )  # fmt: skip
        logits = self.output(x)  # B L V
        return (logits, [own for (own,) in weights]) if return_weights else logits

    def _masks(
        self, mask: Tensor | None, real: Bool[Tensor, "B S"], length: int, keys: int
    ) -> tuple[Bool[Tensor, "..."] | None, bool]:
        """mask and causal for all layers: one mask, made once, if there is any."""
        if mask is not None or self.config.pad_id is not None:
            mask = combine_masks(real[:, None, None, :], mask)[..., -keys:]
        if mask is None or length == 1:  # a single token is the last one: all others are past
            return mask, length > 1
        return combine_masks(mask, causal_mask(length, keys, device=real.device)), False

    def _bias(self, positions: Int[Tensor, "B S"], length: int) -> Float[Tensor, "B H L S"] | None:
        """ALiBi's bias for all layers, where it is made here."""
        if self.alibi is None:
            return None
        return self.alibi.bias(positions[:, -length:], positions)

    @checked
    def new_cache(self, *, capacity: PositiveInt = 64) -> DecoderCache:
        """An empty cache for `forward`; with a window it keeps no more than the window."""
        window = self.config.window
        own = None if window is None else partial(WindowCache, window)
        return DecoderCache(len(self.layers), capacity=capacity, own=own)

    def reset_parameters(self) -> None:
        """Initialize the weights, as Transformer does."""
        init_linear_layers(self.layers, self.config.norm_placement, self._beta)
        init_embedding(self.embedding.table, self.config)
        init_output(self.output, self.config)


def attention_positions(config: LanguageModelConfig) -> PositionScheme | None:
    """The scheme that acts in the attention of every layer, if there is one."""
    if config.positions == "rotary":
        return RotaryPositions(config.d_head, layout=config.position_layout)
    return ALiBi(config.num_heads) if config.positions == "alibi" else None
