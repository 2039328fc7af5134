"""A decoder-only language model, such as GPT: it reads the tokens so far and predicts the next."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..bounds import AtLeast, Below, Divides, PositiveFloat, PositiveInt
from ..errors import argument_error, shape_of
from ..functional.masks import causal_mask, combine_masks
from ..layers.blocks import (
    Embedding,
    EncoderLayer,
    RealTokens,
    counted_positions,
    init_embedding,
    init_linear_layers,
    init_output,
    make_norm,
    make_stack,
    tokens_so_far,
)
from ..layers.blocks import position_ids as real_positions
from ..layers.cache import DecoderCache, WindowCache
from ..layers.config import BlockConfig
from ..layers.indexed_latent_attention import IndexedLatentAttention, IndexerConfig
from ..layers.latent_attention import LatentAttention, LatentConfig
from ..layers.moe import ExpertsConfig, MixtureOfExperts
from ..layers.multi_head import head_size
from ..layers.qk_norm import QKNormAttention
from ..layers.residual import deepnorm_constants
from ..positions.alibi import ALiBi
from ..positions.mscale import MscaleYarnScaling
from ..positions.protocol import PositionScheme
from ..positions.rotary import RotaryPositions
from ..positions.scaled_rotary import ScaledRotaryPositions, Scaling
from ..shapes import checked

__all__ = ["LanguageModel", "LanguageModelConfig"]


@dataclass(frozen=True)
class LanguageModelConfig(BlockConfig):
    """Every size and choice of a decoder-only model.

    GPT-2 is norm_placement="pre", positions="learned", activation="gelu_tanh", scale_embedding=False,
    pad_id=None. Llama is norm_placement="pre", norm="rms", positions="rotary",
    position_layout="halves", activation="swiglu", bias=False, scale_embedding=False, pad_id=None.
    Mistral adds a window, Mixtral experts, Qwen3 qk_norm, DeepSeek latent and experts, its V3.2 an indexer.

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
    rotary_base: PositiveFloat = 10000.0
    rotary_dim: PositiveInt | None = None  # how many features of a head rotate; None: all
    rotary_scaling: Scaling | None = None
    qk_norm: bool = False  # an RMSNorm of each query and key, see QKNormAttention
    latent: LatentConfig | None = None  # see LatentAttention; d_head then is without d_rotary
    indexer: IndexerConfig | None = None  # with latent, see IndexedLatentAttention
    experts: ExpertsConfig | None = None  # see MixtureOfExperts
    attention_bias: bool | None = None  # in the layers of attention; None: as bias
    pad_id: Annotated[int, AtLeast(0), Below("vocab_size")] | None = 0
    head: bool = True  # False: no output layer, the model returns the last hidden states

    def __post_init__(self) -> None:
        super().__post_init__()
        kv_heads = self.num_heads if self.num_kv_heads is None else self.num_kv_heads
        object.__setattr__(self, "num_kv_heads", kv_heads)
        biased = self.bias if self.attention_bias is None else self.attention_bias
        object.__setattr__(self, "attention_bias", biased)
        object.__setattr__(self, "d_head", head_size(self.d_model, self.num_heads, self.d_head))
        if self.indexer is not None and (self.latent is None or self.latent.d_query_latent is None):
            wanted = "None, without a latent whose d_query_latent is given"
            raise argument_error(ValueError, "indexer", repr(self.indexer), wanted)
        if self.latent is not None:
            self._check_latent()
        elif isinstance(self.rotary_scaling, MscaleYarnScaling):
            wanted = "another scaling: this one scales the scores of a latent attention"
            raise argument_error(ValueError, "rotary_scaling", repr(self.rotary_scaling), wanted)

    def _check_latent(self) -> None:
        """Raise for options that latent attention does not have: its keys are made for every query head."""
        needed = {
            "num_kv_heads": self.num_heads, "window": None, "positions": "rotary", "qk_norm": False,
            "rotary_dim": None,
        }  # fmt: skip
        for name, wanted in needed.items():
            if getattr(self, name) != wanted:
                came = repr(getattr(self, name))
                raise argument_error(ValueError, name, came, f"{wanted!r}, with latent attention")


class LanguageModel(nn.Module):
    """Predict every next token of a text: encoder layers under a causal mask.

    Padding may stand left or right: it is masked, and a token's position counts the real tokens before
    it. Padding is the token pad_id, or what attention_mask says (True or 1: a real token). Where the
    model has no pad_id, positions count all tokens, as in transformers, unless position_ids are given.

    Shapes: ids (B, L), attention_mask (B, S) for everything so far, position_ids (B, L) -> logits
        (B, L, V), without a head the last hidden states (B, L, D), and the attention weights of every
        layer, each (B, H, L, S), with return_weights.
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
        self.takes_positions = config.positions not in ("none", "alibi")
        # In a layer ALiBi counts along the sequence; with padding in it, the model counts real tokens.
        self.alibi = scheme if isinstance(scheme, ALiBi) and config.pad_id is not None else None
        options = {"alpha": alpha, "positions": scheme if self.alibi is None else None}
        self.embedding = Embedding(config.vocab_size, config)
        numbers = range(config.num_layers)
        self.layers = make_stack(config, (self._make_layer(n, **options) for n in numbers))
        needs_norm = config.norm_placement in ("pre", "resi_dual")
        self.norm = make_norm(config) if needs_norm else None
        self.output = None
        if config.head:
            self.output = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.head and config.tied_output:
            self.output.weight = self.embedding.table.weight
        self.reset_parameters()

    @checked(like="self.embedding.table.weight", B="cache.real.shape.0", H="self.config.num_heads")
    def forward(
        self,
        ids: Annotated[Int[Tensor, "B L"], AtLeast(0), Below("self.config.vocab_size")],
        attention_mask: RealTokens | None = None,
        *,
        position_ids: Annotated[Int[Tensor, "#B L"], AtLeast(0)] | None = None,
        mask: Bool[Tensor, "#L #T"] | Bool[Tensor, "#B #H #L #T"] | None = None,
        cache: DecoderCache | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L V"] | tuple[Float[Tensor, "B L V"], list[Tensor]]:
        """Predict the next tokens; with a cache, ids are the chunk that follows what it has seen.

        The mask hides more than the future and padding: (L, everything so far), or four axes. With a
        cache the last L columns of attention_mask count: it remembers the others.
        """
        self._check_positions(position_ids)
        length, pad_id = ids.shape[1], self.config.pad_id
        real, padded = tokens_so_far(ids, pad_id, attention_mask, cache)
        positions = counted_positions(real, pad_id)
        own = positions[:, -length:] if position_ids is None else position_ids
        x = self.embedding(ids, own, num_positions(real, position_ids))
        caches = None if cache is None else [layer.own for layer in cache.layers]
        keys = length if cache is None else max(own.num_keys(length) for own in caches)
        mask, causal = self._masks(mask, real, padded, length, keys)
        x, weights = self.layers(
            x, norm=self.norm, caches=caches, mask=mask, causal=causal,
            position_ids=own, return_weights=return_weights,
            **self._biases(real, keys, length),
        )  # fmt: skip
        logits = x if self.output is None else self.output(x)  # B L V
        return (logits, [own for (own,) in weights]) if return_weights else logits

    def _make_layer(self, number: int, **options: Any) -> EncoderLayer:
        """Layer `number`, counted from 0: a family may have layers of several kinds."""
        mixture = make_mixture(self.config, number)
        kind = attention_kind(self.config)
        return EncoderLayer(self.config, feed_forward=mixture, **kind, **options)

    def _check_positions(self, position_ids: Tensor | None) -> None:
        """Raise if positions are given to a model that has none, or counts them in a bias."""
        if position_ids is not None and not self.takes_positions:
            wanted = f'None, with positions="{self.config.positions}"'
            raise argument_error(
                ValueError, "position_ids", f"shape {shape_of(position_ids)}", wanted
            )

    def _masks(
        self, mask: Tensor | None, real: Bool[Tensor, "B S"], padded: bool, length: int, keys: int
    ) -> tuple[Bool[Tensor, "..."] | None, bool]:
        """mask and causal for all layers: one mask, made once, if there is any."""
        if mask is not None or padded:
            mask = combine_masks(real[:, None, None, :], mask)[..., -keys:]
        if mask is None or length == 1:  # a single token is the last one: all others are past
            return mask, length > 1
        return combine_masks(mask, causal_mask(length, keys, device=real.device)), False

    def _biases(self, real: Bool[Tensor, "B S"], keys: int, length: int) -> dict[str, Tensor]:
        """ALiBi's bias for all layers, where it is made here: by positions that count real tokens."""
        if self.alibi is None:
            return {}
        positions = real_positions(real)[:, -keys:]
        return {"bias": self.alibi.bias(positions[:, -length:], positions)}

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
        if self.output is not None:
            init_output(self.output, self.config)


def attention_positions(config: LanguageModelConfig) -> PositionScheme | None:
    """The scheme that acts in the attention of every layer, if there is one."""
    if config.positions == "rotary":
        size = config.d_head if config.latent is None else config.latent.d_rotary
        options = {
            "base": config.rotary_base, "layout": config.position_layout,
            "rotary_dim": config.rotary_dim,
        }  # fmt: skip
        if config.rotary_scaling is None:
            return RotaryPositions(size, **options)
        return ScaledRotaryPositions(size, config.rotary_scaling, **options)
    return ALiBi(config.num_heads) if config.positions == "alibi" else None


def attention_kind(config: LanguageModelConfig) -> dict[str, Any]:
    """The class of the attention layers, and its options besides positions."""
    options = {"d_head": config.d_head, "bias": config.attention_bias}
    if config.latent is not None:
        options |= {"scale": latent_scale(config)} | vars(config.latent)
        return options | indexer_kind(config)
    options |= {"num_kv_heads": config.num_kv_heads, "window": config.window}
    if config.qk_norm:
        options |= {"kind": QKNormAttention, "norm_eps": config.norm_eps}
    return options


def indexer_kind(config: LanguageModelConfig) -> dict[str, Any]:
    """The class of a latent attention, and what its indexer needs, if it has one."""
    if config.indexer is None:
        return {"kind": LatentAttention}
    positions = attention_positions(replace(config, position_layout=config.indexer.layout))
    return {
        "kind": IndexedLatentAttention, "indexer": config.indexer, "index_positions": positions,
    }  # fmt: skip


def latent_scale(config: LanguageModelConfig) -> float | None:
    """The scale of a latent attention's scores, where YaRN changes it; None: the usual one."""
    if not isinstance(config.rotary_scaling, MscaleYarnScaling):
        return None
    return config.rotary_scaling.score_factor * (config.d_head + config.latent.d_rotary) ** -0.5


def make_mixture(config: LanguageModelConfig, number: int) -> MixtureOfExperts | None:
    """The mixture of experts of a layer, if it has one."""
    if config.experts is None or number < config.experts.num_dense:
        return None
    return MixtureOfExperts(config.d_model, config.experts, bias=config.bias)


def num_positions(real: Bool[Tensor, "B S"], position_ids: Tensor | None) -> int:
    """A number that all positions are below: what the caller gives may lie beyond the text."""
    given = position_ids is not None and position_ids.numel()
    return int(position_ids.max()) + 1 if given else real.shape[1]
