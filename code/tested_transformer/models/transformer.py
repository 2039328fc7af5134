"""The Transformer of 2017: an encoder for the source sequence, a decoder that generates the target."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..bounds import AtLeast, Below, Divides, PositiveInt
from ..errors import argument_error
from ..functional.masks import causal_mask, combine_masks, padding_mask_from_tokens
from ..layers.blocks import (
    DecoderLayer,
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
from ..layers.cache import DecoderCache
from ..layers.config import BlockConfig
from ..layers.residual import deepnorm_constants
from ..shapes import checked

__all__ = ["AttentionWeights", "Decoder", "Encoder", "Transformer", "TransformerConfig"]

SourceIDs = Annotated[Int[Tensor, "B S"], AtLeast(0), Below("self.config.source_vocab")]
TargetIDs = Annotated[Int[Tensor, "B L"], AtLeast(0), Below("self.config.output_vocab")]

# --- Configuration --------------------------------------------------------------------------------


@dataclass(frozen=True)
class TransformerConfig(BlockConfig):
    """Every size and choice of a Transformer. Without arguments: the paper's base model.

    Raises: TypeError or ValueError that name the field.
    Source: Vaswani et al. 2017, table 3; the shared vocabulary of 37,000: section 5.1.
    """

    source_vocab: PositiveInt = 37_000
    target_vocab: PositiveInt | None = (
        None  # None: both languages share one vocabulary and embedding
    )
    _: KW_ONLY
    num_heads: Annotated[int, AtLeast(1), Divides("d_model")] = 8
    num_encoder_layers: PositiveInt = 6
    num_decoder_layers: PositiveInt = 6
    pad_id: Annotated[int, AtLeast(0), Below("source_vocab"), Below("self.output_vocab")] | None = 0
    final_norm: bool | None = None  # at the end of each stack; None: where the placement needs it
    embedding_norm: bool = False  # BART normalizes the embeddings
    output_bias: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        needs_norm = self.norm_placement in ("pre", "resi_dual")
        final_norm = needs_norm if self.final_norm is None else self.final_norm
        object.__setattr__(self, "final_norm", final_norm)
        if self.norm_placement == "resi_dual" and not self.final_norm:
            wanted = 'True: the norm_placement "resi_dual" ends in a norm'
            raise argument_error(ValueError, "final_norm", False, wanted)

    @classmethod
    def big(cls, **changes: Any) -> TransformerConfig:
        """The paper's big model."""
        return cls(**{"d_model": 1024, "num_heads": 16, "dropout": 0.3} | changes)

    @property
    def output_vocab(self) -> int:
        """How many tokens the model can generate."""
        return self.source_vocab if self.target_vocab is None else self.target_vocab


@dataclass
class AttentionWeights:
    """The weights of every attention, layer by layer, each (B, H, L, S)."""

    encoder: list[Tensor] = field(default_factory=list)  # from source to source
    decoder: list[Tensor] = field(default_factory=list)  # from target to the target so far
    cross: list[Tensor] = field(default_factory=list)  # from target to source


# --- The stacks -----------------------------------------------------------------------------------


class Encoder(nn.Module):
    """N encoder layers, one after the other.

    Shapes: x (B, S, D), embedded -> (B, S, D), and a list of N attention weights (B, H, S, S) with
        return_weights.
    Raises: TypeError or ValueError that name the argument.
    Source: Vaswani et al. 2017, section 3.1.
    """

    @checked
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        alpha = stack_constants(config)[0][0]
        layers = config.num_encoder_layers
        self.layers = make_stack(config, (EncoderLayer(config, alpha) for _ in range(layers)))
        self.norm = make_norm(config) if config.final_norm else None

    @checked
    def forward(
        self,
        x: Float[Tensor, "B S D"],
        *,
        mask: Bool[Tensor, "#S #S"] | Bool[Tensor, "#B #H #S #S"] | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B S D"] | tuple[Float[Tensor, "B S D"], list[Tensor]]:
        """Encode the source; the mask is that of `attention`."""
        x, weights = self.layers(x, norm=self.norm, mask=mask, return_weights=return_weights)
        return (x, [own for (own,) in weights]) if return_weights else x


class Decoder(nn.Module):
    """N decoder layers; every one of them attends to the encoder's output.

    Shapes: x (B, L, D), embedded, memory (B, S, D) -> (B, L, D), and two lists of N attention weights,
        own (B, H, L, L) and cross (B, H, L, S), with return_weights. With a cache, own weights are
        (B, H, L, everything so far).
    Raises: TypeError or ValueError that name the argument.
    Source: Vaswani et al. 2017, section 3.1.
    """

    @checked
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        alpha = stack_constants(config)[1][0]
        layers = config.num_decoder_layers
        self.layers = make_stack(config, (DecoderLayer(config, alpha) for _ in range(layers)))
        self.norm = make_norm(config) if config.final_norm else None
        self.d_model = config.d_model

    @checked(like="self.layers.0.cross_attention.key.weight", D="self.d_model")
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        memory: Float[Tensor, "B S D"],
        *,
        mask: Bool[Tensor, "#L #T"] | Bool[Tensor, "#B #H #L #T"] | None = None,
        memory_mask: Bool[Tensor, "#L #S"] | Bool[Tensor, "#B #H #L #S"] | None = None,
        causal: bool = True,
        cache: DecoderCache | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L D"] | tuple[Float[Tensor, "B L D"], list[Tensor], list[Tensor]]:
        """Decode: mask is for the target, memory_mask for the source."""
        if causal and mask is not None:  # one mask for all layers, made once
            past = 0 if cache is None else cache.layers[0].own.length
            order = causal_mask(x.shape[1], past + x.shape[1], device=x.device)
            mask, causal = combine_masks(mask, order), False
        x, weights = self.layers(
            x, memory, norm=self.norm, caches=None if cache is None else cache.layers, mask=mask,
            memory_mask=memory_mask, causal=causal, return_weights=return_weights,
        )  # fmt: skip
        return (x, *map(list, zip(*weights, strict=True))) if return_weights else x


class Transformer(nn.Module):
    """Encode the source, predict every next token of the target.

    Masks are made from the token IDs: padding is masked everywhere, and no target token attends to its
    future. The caller may mask more, by (L, S) or four axes, True = may attend. A token's position
    counts the real tokens before it, so padding may stand left or right.

    Shapes: source (B, S), target (B, L) -> logits (B, L, V), and the weights of every layer and head
        with return_weights.
    Raises: TypeError or ValueError that name the argument.
    Source: Vaswani et al. 2017, figure 1 and section 3.

    >>> import torch
    >>> config = TransformerConfig(9, d_model=4, num_heads=2, dropout=0.0)
    >>> model = Transformer(config)
    >>> tuple(model(torch.tensor([[3, 4, 5]]), torch.tensor([[1, 6]])).shape)
    (1, 2, 9)
    """

    @checked
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = self._embedding(config.source_vocab)
        shared = self.source_embedding.table if config.target_vocab is None else None
        self.target_embedding = self._embedding(config.output_vocab, shared)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.output = nn.Linear(config.d_model, config.output_vocab, bias=config.output_bias)
        if config.tied_output:
            self.output.weight = self.target_embedding.table.weight
        self.reset_parameters()

    @checked(like="self.output.weight", H="self.config.num_heads")
    def forward(
        self,
        source: Int[Tensor, "B S"],
        target: Int[Tensor, "B L"],
        *,
        source_mask: Bool[Tensor, "#S #S"] | Bool[Tensor, "#B #H #S #S"] | None = None,
        target_mask: Bool[Tensor, "#L #L"] | Bool[Tensor, "#B #H #L #L"] | None = None,
        memory_mask: Bool[Tensor, "#L #S"] | Bool[Tensor, "#B #H #L #S"] | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L V"] | tuple[Float[Tensor, "B L V"], AttentionWeights]:
        """Predict the next token of every prefix of the target."""
        answer = self.encode(source, mask=source_mask, return_weights=return_weights)
        memory, encoder_weights = answer if return_weights else (answer, [])
        visible = combine_masks(self.padding(source), memory_mask)
        answer = self.decode(
            target, memory, mask=target_mask, memory_mask=visible, return_weights=return_weights
        )
        if not return_weights:
            return answer
        logits, weights = answer
        weights.encoder = encoder_weights
        return logits, weights

    @checked(like="self.output.weight", H="self.config.num_heads")
    def encode(
        self,
        source: SourceIDs,
        *,
        mask: Bool[Tensor, "#S #S"] | Bool[Tensor, "#B #H #S #S"] | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B S D"] | tuple[Float[Tensor, "B S D"], list[Tensor]]:
        """Encode the source: the memory (B, S, D) that the decoder attends to."""
        x = self.embed(self.source_embedding, source, real_tokens(source, self.config.pad_id))
        mask = combine_masks(self.padding(source), mask)
        return self.encoder(x, mask=mask, return_weights=return_weights)

    @checked(
        like="self.output.weight",
        B="cache.real.shape.0",
        H="self.config.num_heads",
        D="self.config.d_model",
    )
    def decode(
        self,
        target: TargetIDs,
        memory: Float[Tensor, "B S D"],
        *,
        mask: Bool[Tensor, "#L #T"] | Bool[Tensor, "#B #H #L #T"] | None = None,
        memory_mask: Bool[Tensor, "#L #S"] | Bool[Tensor, "#B #H #L #S"] | None = None,
        cache: DecoderCache | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L V"] | tuple[Float[Tensor, "B L V"], AttentionWeights]:
        """Predict the next tokens. memory_mask: `padding(source)`, and what else of it is masked.

        With a cache, target is the chunk that follows what the cache has seen; the mask covers all
        of it, (L, everything so far).
        """
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

    @checked(like="self.output.weight")
    def embed(
        self, embedding: Embedding, ids: Int[Tensor, "B L"], real: Bool[Tensor, "B S"]
    ) -> Float[Tensor, "B L D"]:
        """Embed the last L of S tokens at their positions; real says which of the S are no padding."""
        return embedding(ids, position_ids(real)[:, -ids.shape[1] :], real.shape[1])

    @checked
    def padding(self, ids: Int[Tensor, "B S"]) -> Bool[Tensor, "B 1 1 S"] | None:
        """The padding mask; None if no token is padding."""
        pad_id = self.config.pad_id
        return None if pad_id is None else padding_mask_from_tokens(ids, pad_id)

    @checked
    def new_cache(self, *, capacity: PositiveInt = 64) -> DecoderCache:
        """An empty cache for `decode`."""
        return DecoderCache(self.config.num_decoder_layers, capacity=capacity)

    def reset_parameters(self) -> None:
        """Initialize the weights: Glorot's uniform matrices, zero biases, normal embeddings.

        Embeddings have a standard deviation of 1/sqrt(D), so that times sqrt(D) their variance is 1. With
        norm_placement="deepnorm" matrices start smaller where DeepNorm says so.
        """
        stacks = self.encoder, self.decoder
        for stack, (_, beta) in zip(stacks, stack_constants(self.config), strict=True):
            init_linear_layers(stack, self.config.norm_placement, beta)
        for embedding in (self.source_embedding, self.target_embedding):
            init_embedding(embedding.table, self.config)
        init_output(self.output, self.config)

    def _embedding(self, vocab: int, table: nn.Embedding | None = None) -> Embedding:
        norm = make_norm(self.config) if self.config.embedding_norm else None
        return Embedding(vocab, self.config, table=table, norm=norm)


def stack_constants(config: TransformerConfig) -> tuple[tuple[float, float], tuple[float, float]]:
    """(alpha, beta) of encoder and decoder: 1 and 1 unless the norm placement is "deepnorm"."""
    if config.norm_placement != "deepnorm":
        return (1.0, 1.0), (1.0, 1.0)
    return deepnorm_constants(config.num_encoder_layers, config.num_decoder_layers)
