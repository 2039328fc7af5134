"""The Transformer of 2017: an encoder that reads a sentence, a decoder that writes another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..errors import (
    argument_error,
    check_bool,
    check_count,
    check_integer_tensor,
    check_positive,
    check_probability,
    check_rank,
    shape_of,
)
from ..functional.masks import causal_mask, combine_masks, padding_mask_from_tokens
from ..layers.cache import DecoderCache, KeyValueCache, LayerCache
from ..layers.feed_forward import ACTIVATIONS, FeedForward
from ..layers.multi_head import MultiHeadAttention, check_sequence
from ..layers.norms import LayerNorm, RMSNorm
from ..layers.residual import NORM_PLACEMENTS, Residual, deepnorm_constants, deepnorm_init
from ..positions.learned import LearnedPositions
from ..positions.sinusoidal import LAYOUTS, SinusoidalPositions

__all__ = [
    "AttentionWeights",
    "Decoder",
    "DecoderLayer",
    "Embedding",
    "Encoder",
    "EncoderLayer",
    "Transformer",
    "TransformerConfig",
]

NORMS = {"layer": LayerNorm, "rms": RMSNorm}
CHOICES = {
    "activation": tuple(ACTIVATIONS),
    "norm_placement": NORM_PLACEMENTS,
    "norm": tuple(NORMS),
    "positions": ("sinusoidal", "learned", "none"),
    "position_layout": LAYOUTS,
}

# --- Configuration --------------------------------------------------------------------------------


@dataclass(frozen=True)
class TransformerConfig:
    """Every size and choice of a Transformer. Without arguments: the paper's base model.

    Raises: TypeError or ValueError that name the field.
    Source: Vaswani et al. 2017, table 3; the shared vocabulary of 37,000: section 5.1.
    """

    source_vocab: int = 37_000
    target_vocab: int | None = None  # None: both languages share one vocabulary and one table
    d_model: int = 512
    num_heads: int = 8
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    d_ff: int | None = None  # None: 4 x d_model
    dropout: float = 0.1
    activation: str = "relu"
    bias: bool = True  # in every linear layer and norm of the stacks
    norm_placement: str = "post"  # where the norm stands: see Residual
    norm: str = "layer"
    norm_eps: float = 1e-5
    final_norm: bool | None = (
        None  # a norm at the end of each stack; None: where the norm_placement needs it
    )
    positions: str = "sinusoidal"
    position_layout: str = "interleaved"
    max_length: int | None = None  # for learned positions, which end somewhere
    scale_embedding: bool = True  # times sqrt(d_model)
    embedding_norm: bool = False  # BERT and BART normalize what the embedding gives
    tied_output: bool = True  # the output layer's matrix is the target embedding's table
    output_bias: bool = False
    pad_id: int | None = 0  # None: no token is padding

    def __post_init__(self) -> None:
        d_ff = 4 * self.d_model if self.d_ff is None else self.d_ff
        object.__setattr__(self, "d_ff", d_ff)
        needs_norm = self.norm_placement in ("pre", "resi_dual")
        final_norm = needs_norm if self.final_norm is None else self.final_norm
        object.__setattr__(self, "final_norm", final_norm)
        self._check()

    @classmethod
    def big(cls, **changes: Any) -> TransformerConfig:
        """The paper's big model."""
        return cls(**{"d_model": 1024, "num_heads": 16, "dropout": 0.3} | changes)

    @property
    def output_vocab(self) -> int:
        """How many words the model can write."""
        return self.source_vocab if self.target_vocab is None else self.target_vocab

    def _check(self) -> None:
        counts = "source_vocab d_model num_heads num_encoder_layers num_decoder_layers d_ff".split()
        for name in counts:
            check_count(name, getattr(self, name))
        if self.target_vocab is not None:
            check_count("target_vocab", self.target_vocab)
        flags = "bias final_norm scale_embedding embedding_norm tied_output output_bias".split()
        for name in flags:
            check_bool(name, getattr(self, name))
        check_probability("dropout", self.dropout)
        check_positive("norm_eps", self.norm_eps)
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                came, wanted = repr(getattr(self, name)), f"one of {', '.join(known)}"
                raise argument_error(ValueError, name, came, wanted)
        if self.d_model % self.num_heads:
            wanted = f"a number that divides d_model = {self.d_model}"
            raise argument_error(ValueError, "num_heads", self.num_heads, wanted)
        if self.norm_placement == "resi_dual" and not self.final_norm:
            raise argument_error(
                ValueError,
                "final_norm",
                False,
                'True: the norm_placement "resi_dual" ends in a norm',
            )
        if self.positions == "learned":
            check_count("max_length", self.max_length)
        if self.pad_id is not None:
            check_count("pad_id", self.pad_id, least=0)
            vocab = min(self.source_vocab, self.output_vocab)
            if self.pad_id >= vocab:
                raise argument_error(ValueError, "pad_id", self.pad_id, f"a number below {vocab}")


@dataclass
class AttentionWeights:
    """The weights of every attention, layer by layer, each (B, H, L, S)."""

    encoder: list[Tensor] = field(default_factory=list)  # source looks at source
    decoder: list[Tensor] = field(default_factory=list)  # target looks at the target so far
    cross: list[Tensor] = field(default_factory=list)  # target looks at source


# --- The parts ------------------------------------------------------------------------------------


class Embedding(nn.Module):
    """Token ids to vectors: the row of a table times sqrt(D), plus the position, then dropout.

    The row of the padding token is zero and gets no gradient here.

    Shapes: ids and places (B, L) -> (B, L, D).
    Raises: TypeError or ValueError for ids that are no token numbers.
    Source: Vaswani et al. 2017, sections 3.4 and 3.5.
    """

    def __init__(
        self, vocab: int, config: TransformerConfig, table: nn.Embedding | None = None
    ) -> None:
        super().__init__()
        check_config(config)
        width = config.d_model
        self.table = nn.Embedding(vocab, width, config.pad_id) if table is None else table
        self.positions = _positions(config)
        self.norm = make_norm(config) if config.embedding_norm else None
        self.dropout = nn.Dropout(config.dropout)
        self.scale = width**0.5 if config.scale_embedding else 1.0

    def forward(
        self, ids: Int[Tensor, "B L"], places: Int[Tensor, "B L"], num_positions: int
    ) -> Float[Tensor, "B L D"]:
        """Look the tokens up; places are the positions, all below num_positions."""
        x = self.table(ids) * self.scale  # B L D
        if self.positions is not None:
            x = x + self._encode(places, num_positions).to(x.dtype)
        x = x if self.norm is None else self.norm(x)
        return self.dropout(x)

    def _encode(self, places: Tensor, num_positions: int) -> Tensor:
        if isinstance(self.positions, LearnedPositions) or places.numel() <= num_positions:
            return self.positions(places)
        every = torch.arange(num_positions, device=places.device)
        return self.positions(every)[places]  # each sinusoid once, then looked up


class EncoderLayer(nn.Module):
    """Look at the whole sentence, then think about each token alone.

    With causal=True it looks at the tokens so far only: the layer of a model without an encoder.

    Shapes: x (B, S, D) -> x, total and a list of the weights (B, H, S, S) if they are wanted. total
        is the second stream of the norm_placement "resi_dual", None elsewhere.
    Source: Vaswani et al. 2017, section 3.1.
    """

    def __init__(self, config: TransformerConfig, alpha: float = 1.0) -> None:
        super().__init__()
        check_config(config)
        self.attention = _attention(config)
        self.feed_forward = _feed_forward(config)
        self.residuals = nn.ModuleList(_residual(config, alpha) for _ in range(2))

    def forward(
        self,
        x: Float[Tensor, "B S D"],
        total: Float[Tensor, "B S D"] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        causal: bool = False,
        cache: KeyValueCache | None = None,
        return_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """One layer."""
        found: list[Tensor] = []
        attend = _sublayer(
            self.attention, found, mask=mask, causal=causal, cache=cache,
            return_weights=return_weights,
        )  # fmt: skip
        x, total = self.residuals[0](x, attend, total)
        x, total = self.residuals[1](x, self.feed_forward, total)
        return x, total, found


class DecoderLayer(nn.Module):
    """Look at what is written so far, look at the source sentence, then think about each token.

    Shapes: x (B, L, D), memory (B, S, D) -> x, total and a list of the weights (B, H, L, L) and
        (B, H, L, S) if they are wanted.
    Source: Vaswani et al. 2017, section 3.1; the three uses of attention: section 3.2.3.
    """

    def __init__(self, config: TransformerConfig, alpha: float = 1.0) -> None:
        super().__init__()
        check_config(config)
        self.attention = _attention(config)
        self.cross_attention = _attention(config)
        self.feed_forward = _feed_forward(config)
        self.residuals = nn.ModuleList(_residual(config, alpha) for _ in range(3))

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        memory: Float[Tensor, "B S D"],
        total: Float[Tensor, "B L D"] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        causal: bool = True,
        cache: LayerCache | None = None,
        return_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """One layer."""
        found: list[Tensor] = []
        own, cross = (None, None) if cache is None else (cache.own, cache.cross)
        attend = _sublayer(
            self.attention, found, mask=mask, causal=causal, cache=own,
            return_weights=return_weights,
        )  # fmt: skip
        consult = _sublayer(
            self.cross_attention, found, context=memory, mask=memory_mask, cache=cross,
            return_weights=return_weights,
        )  # fmt: skip
        x, total = self.residuals[0](x, attend, total)
        x, total = self.residuals[1](x, consult, total)
        x, total = self.residuals[2](x, self.feed_forward, total)
        return x, total, found


# --- The stacks -----------------------------------------------------------------------------------


class Encoder(nn.Module):
    """N encoder layers, one after the other.

    Shapes: x (B, S, D), embedded -> (B, S, D), and a list of N weights (B, H, S, S) with
        return_weights.
    Raises: TypeError or ValueError that name the argument.
    Source: Vaswani et al. 2017, section 3.1.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        check_config(config)
        alpha = _constants(config)[0][0]
        layers = config.num_encoder_layers
        self.layers = nn.ModuleList(EncoderLayer(config, alpha) for _ in range(layers))
        self.norm = make_norm(config) if config.final_norm else None
        self.norm_placement = config.norm_placement

    def forward(
        self,
        x: Float[Tensor, "B S D"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B S D"] | tuple[Float[Tensor, "B S D"], list[Tensor]]:
        """Read the sentence; the mask is that of `attention`."""
        check_sequence("x", x)
        total, weights = x if self.norm_placement == "resi_dual" else None, []
        for layer in self.layers:
            x, total, found = layer(x, total, mask=mask, return_weights=return_weights)
            weights += found
        x = final_norm(self.norm, x, total)
        return (x, weights) if return_weights else x


class Decoder(nn.Module):
    """N decoder layers; every one of them reads the encoder's last output.

    Shapes: x (B, L, D), embedded, memory (B, S, D) -> (B, L, D), and two lists of N weights, own
        (B, H, L, L) and cross (B, H, L, S), with return_weights. With a cache, own weights are
        (B, H, L, everything so far).
    Raises: TypeError or ValueError that name the argument.
    Source: Vaswani et al. 2017, section 3.1.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        check_config(config)
        alpha = _constants(config)[1][0]
        layers = config.num_decoder_layers
        self.layers = nn.ModuleList(DecoderLayer(config, alpha) for _ in range(layers))
        self.norm = make_norm(config) if config.final_norm else None
        self.norm_placement = config.norm_placement

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        memory: Float[Tensor, "B S D"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        causal: bool = True,
        cache: DecoderCache | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L D"] | tuple[Float[Tensor, "B L D"], list[Tensor], list[Tensor]]:
        """Write: mask hides parts of the target, memory_mask parts of the source."""
        check_sequence("x", x)
        check_sequence("memory", memory)
        caches = [None] * len(self.layers) if cache is None else cache.layers
        if len(caches) != len(self.layers):
            raise argument_error(
                ValueError, "cache", f"{len(caches)} layers", f"{len(self.layers)}"
            )
        if causal and mask is not None:  # one mask for all layers, made once
            past = 0 if cache is None else caches[0].own.length
            order = causal_mask(x.shape[1], past + x.shape[1], device=x.device)
            mask = combine_masks(mask, order)
            causal = False
        total, own, cross = x if self.norm_placement == "resi_dual" else None, [], []
        for layer, kept in zip(self.layers, caches, strict=True):
            x, total, found = layer(
                x, memory, total, mask=mask, memory_mask=memory_mask, causal=causal, cache=kept,
                return_weights=return_weights,
            )  # fmt: skip
            own += found[:1]
            cross += found[1:]
        x = final_norm(self.norm, x, total)
        return (x, own, cross) if return_weights else x


class Transformer(nn.Module):
    """Read token ids in one language, score every next token in another.

    Masks are made from the ids: padding is hidden everywhere, and the target never sees its own
    future. More may be hidden by masks from outside, (L, S) or four axes, True = may attend. A
    token's position counts the real tokens before it, so padding may stand left or right.

    Shapes: source (B, S), target (B, L) -> logits (B, L, V), and the weights of every layer and head
        with return_weights.
    Raises: TypeError or ValueError that name the argument.
    Source: Vaswani et al. 2017, figure 1 and section 3.

    >>> config = TransformerConfig(9, d_model=4, num_heads=2, dropout=0.0)
    >>> model = Transformer(config)
    >>> tuple(model(torch.tensor([[3, 4, 5]]), torch.tensor([[1, 6]])).shape)
    (1, 2, 9)
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        check_config(config)
        self.config = config
        self.source_embedding = Embedding(config.source_vocab, config)
        shared = self.source_embedding.table if config.target_vocab is None else None
        self.target_embedding = Embedding(config.output_vocab, config, shared)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.output = nn.Linear(config.d_model, config.output_vocab, bias=config.output_bias)
        if config.tied_output:
            self.output.weight = self.target_embedding.table.weight
        self.reset_parameters()

    def forward(
        self,
        source: Int[Tensor, "B S"],
        target: Int[Tensor, "B L"],
        *,
        source_mask: Bool[Tensor, "..."] | None = None,
        target_mask: Bool[Tensor, "..."] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L V"] | tuple[Float[Tensor, "B L V"], AttentionWeights]:
        """Score every next token of every prefix of the target."""
        check_ids("source", source, self.config.source_vocab)
        check_ids("target", target, self.config.output_vocab)
        if source.shape[0] != target.shape[0]:
            wanted = f"{source.shape[0]} rows, as the source has"
            raise argument_error(ValueError, "target", f"shape {shape_of(target)}", wanted)
        read = self.encode(source, mask=source_mask, return_weights=return_weights)
        memory, seen = read if return_weights else (read, [])
        visible = combine_masks(self.padding(source), memory_mask)
        written = self.decode(
            target, memory, mask=target_mask, memory_mask=visible, return_weights=return_weights
        )
        if not return_weights:
            return written
        logits, weights = written
        weights.encoder = seen
        return logits, weights

    def encode(
        self,
        source: Int[Tensor, "B S"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B S D"] | tuple[Float[Tensor, "B S D"], list[Tensor]]:
        """Read the source: its memory (B, S, D), from which the decoder writes."""
        check_ids("source", source, self.config.source_vocab)
        x = self.embed(self.source_embedding, source, real_tokens(source, self.config.pad_id))
        mask = combine_masks(self.padding(source), mask)
        return self.encoder(x, mask=mask, return_weights=return_weights)

    def decode(
        self,
        target: Int[Tensor, "B L"],
        memory: Float[Tensor, "B S D"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        cache: DecoderCache | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L V"] | tuple[Float[Tensor, "B L V"], AttentionWeights]:
        """Score the next tokens. memory_mask: `padding(source)`, and what else of it is hidden.

        With a cache, target is the chunk that follows what the cache has seen; the mask covers all
        of it, (L, everything so far).
        """
        check_ids("target", target, self.config.output_vocab)
        real = real_tokens(target, self.config.pad_id)
        real = real if cache is None else cache.extend(real)  # B S: everything so far
        x = self.embed(self.target_embedding, target, real)
        if self.config.pad_id is not None:
            mask = combine_masks(real[:, None, None, :], mask)
        answer = self.decoder(
            x, memory, mask=mask, memory_mask=memory_mask, cache=cache,
            return_weights=return_weights,
        )  # fmt: skip
        x, *weights = answer if return_weights else (answer,)
        logits = self.output(x)  # B L V
        return (logits, AttentionWeights([], *weights)) if return_weights else logits

    def embed(
        self, embedding: Embedding, ids: Int[Tensor, "B L"], real: Bool[Tensor, "B S"]
    ) -> Float[Tensor, "B L D"]:
        """Embed the last L of S tokens at their positions; real says which of the S are no padding."""
        return embedding(ids, position_ids(real)[:, -ids.shape[1] :], real.shape[1])

    def padding(self, ids: Int[Tensor, "B S"]) -> Bool[Tensor, "B 1 1 S"] | None:
        """The mask that hides padding; None if no token is padding."""
        pad_id = self.config.pad_id
        return None if pad_id is None else padding_mask_from_tokens(ids, pad_id)

    def new_cache(self, *, capacity: int = 64) -> DecoderCache:
        """An empty cache for `decode`."""
        return DecoderCache(self.config.num_decoder_layers, capacity=capacity)

    def reset_parameters(self) -> None:
        """Draw the weights again: Glorot's uniform matrices, zero biases, embeddings of size 1/sqrt(D).

        The table times sqrt(D) has unit variance. With the norm_placement "deepnorm" the matrices start smaller
        where DeepNorm says so.
        """
        stacks = self.encoder, self.decoder
        for stack, (_, beta) in zip(stacks, _constants(self.config), strict=True):
            init_linear_layers(stack, self.config.norm_placement, beta)
        for embedding in (self.source_embedding, self.target_embedding):
            init_embedding(embedding.table, self.config)
        init_output(self.output, self.config)

    @classmethod
    def from_torch(
        cls,
        theirs: nn.Transformer,
        *,
        embedding: nn.Embedding | tuple[nn.Embedding, nn.Embedding],
        generator: nn.Linear | None = None,
        **changes: Any,
    ) -> Transformer:
        """A copy of torch's two stacks, with the embedding and output layer that they lack.

        embedding: one table for both languages, or (source, target). generator: the output layer;
        None ties it to the target table. changes: fields of TransformerConfig that torch's class
        says nothing about, such as pad_id and positions.

        Raises: TypeError or ValueError for what has no place here.
        """
        from .convert import transformer_from_torch

        return transformer_from_torch(cls, theirs, embedding, generator, changes)

    def to_torch(self) -> nn.Transformer:
        """A copy of the two stacks as torch's class, batch first; embeddings stay behind.

        Raises: ValueError for a norm_placement, norm or activation that torch's class does not have.
        """
        from .convert import transformer_to_torch

        return transformer_to_torch(self)


# --- How a configuration becomes parts ------------------------------------------------------------


def real_tokens(ids: Int[Tensor, "B S"], pad_id: int | None) -> Bool[Tensor, "B S"]:
    """True for a token that is no padding."""
    return torch.ones_like(ids, dtype=torch.bool) if pad_id is None else ids != pad_id


def position_ids(real: Bool[Tensor, "B S"]) -> Int[Tensor, "B S"]:
    """A token's position: how many real ones stand before it. Padding stands anywhere: it is hidden."""
    return (real.cumsum(1) - 1).clamp(min=0)


def init_linear_layers(stack: nn.Module, norm_placement: str, beta: float) -> None:
    """Draw the matrices of a stack anew and set its biases to zero."""
    if norm_placement == "deepnorm":
        deepnorm_init(stack, beta)
        return
    for module in stack.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


@torch.no_grad()
def init_embedding(table: nn.Embedding, config: TransformerConfig) -> None:
    """Draw an embedding anew: times sqrt(D) it has unit variance; padding is zero."""
    nn.init.normal_(table.weight, std=config.d_model**-0.5)
    if config.pad_id is not None:
        nn.init.zeros_(table.weight[config.pad_id])


def init_output(output: nn.Linear, config: TransformerConfig) -> None:
    """Draw the output layer anew, unless its matrix is an embedding's table."""
    if not config.tied_output:
        nn.init.xavier_uniform_(output.weight)
    if output.bias is not None:
        nn.init.zeros_(output.bias)


def check_ids(name: str, ids: Any, vocab: int) -> None:
    """Raise unless ids are token numbers (B, L) below vocab."""
    check_integer_tensor(name, ids)
    check_rank(name, ids, 2)
    # Reading values on a GPU would wait for it, and stops torch.compile: checked on the CPU only.
    if ids.device.type != "cpu" or torch.compiler.is_compiling() or not ids.numel():
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab:
        raise argument_error(ValueError, name, f"ids {low} to {high}", f"ids from 0 to {vocab - 1}")


def check_config(config: Any) -> None:
    """Raise unless config is a TransformerConfig."""
    if not isinstance(config, TransformerConfig):
        raise argument_error(TypeError, "config", type(config).__name__, "a TransformerConfig")


def _attention(config: TransformerConfig) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.d_model, config.num_heads, bias=config.bias, dropout=config.dropout
    )


def _feed_forward(config: TransformerConfig) -> FeedForward:
    return FeedForward(
        config.d_model, config.d_ff, activation=config.activation, bias=config.bias,
        dropout=config.dropout,
    )  # fmt: skip


def make_norm(config: TransformerConfig) -> nn.Module:
    """A norm as the configuration asks for it."""
    options = {"bias": config.bias} if config.norm == "layer" else {}  # RMSNorm has no shift
    return NORMS[config.norm](config.d_model, eps=config.norm_eps, **options)


def _residual(config: TransformerConfig, alpha: float) -> Residual:
    return Residual(
        make_norm(config), norm_placement=config.norm_placement, dropout=config.dropout, alpha=alpha
    )


def _positions(config: TransformerConfig) -> nn.Module | None:
    if config.positions == "sinusoidal":
        return SinusoidalPositions(config.d_model, layout=config.position_layout)
    if config.positions == "learned":
        return LearnedPositions(config.max_length, config.d_model)
    return None


def _constants(config: TransformerConfig) -> tuple[tuple[float, float], tuple[float, float]]:
    """(alpha, beta) of the encoder and of the decoder: 1 and 1 unless the norm_placement is "deepnorm"."""
    if config.norm_placement != "deepnorm":
        return (1.0, 1.0), (1.0, 1.0)
    return deepnorm_constants(config.num_encoder_layers, config.num_decoder_layers)


def _sublayer(
    layer: nn.Module, found: list[Tensor], *, return_weights: bool, **call: Any
) -> Callable[[Tensor], Tensor]:
    """An attention as a function of x alone, for Residual; its weights, if wanted, go to `found`."""

    def attend(x: Tensor) -> Tensor:
        if not return_weights:
            return layer(x, **call)
        output, weights = layer(x, **call, return_weights=True)
        found.append(weights)
        return output

    return attend


def final_norm(norm: nn.Module | None, x: Tensor, total: Tensor | None) -> Tensor:
    """The end of a stack: the final norm, if there is one; ResiDual adds its normed second stream."""
    if norm is None:
        return x
    return norm(x) if total is None else x + norm(total)
