"""The Transformer of 2017: an encoder for the source sequence, a decoder that generates the target."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..bounds import AtLeast, AtMost, Below, PositiveInt
from ..functional.masks import causal_mask, combine_masks
from ..layers.blocks import (
    DecoderLayer,
    Embedding,
    EncoderLayer,
    counted_positions,
    init_embedding,
    init_linear_layers,
    init_output,
    make_norm,
    make_stack,
    tokens_so_far,
)
from ..layers.cache import DecoderCache
from ..layers.config import EncoderDecoderConfig
from ..layers.residual import deepnorm_constants
from ..shapes import checked

__all__ = ["AttentionWeights", "Decoder", "Encoder", "Transformer", "TransformerConfig"]

SourceIDs = Annotated[Int[Tensor, "B S"], AtLeast(0), Below("self.config.source_vocab")]
TargetIDs = Annotated[Int[Tensor, "B L"], AtLeast(0), Below("self.config.output_vocab")]
RealSource = Annotated[Bool[Tensor, "B S"] | Int[Tensor, "B S"], AtLeast(0), AtMost(1)]
RealTarget = Annotated[Bool[Tensor, "B L"] | Int[Tensor, "B L"], AtLeast(0), AtMost(1)]
RealSoFar = Annotated[Bool[Tensor, "B T"] | Int[Tensor, "B T"], AtLeast(0), AtMost(1)]

# --- Configuration --------------------------------------------------------------------------------


@dataclass(frozen=True)
class TransformerConfig(EncoderDecoderConfig):
    """Every size and choice of a Transformer. Without arguments: the paper's base model.

    Raises: TypeError or ValueError that name the field.
    Source: Vaswani et al. 2017, table 3; the shared vocabulary of 37,000: section 5.1.
    """

    source_vocab: PositiveInt = 37_000
    target_vocab: PositiveInt | None = (
        None  # None: both languages share one vocabulary and embedding
    )
    _: KW_ONLY
    pad_id: Annotated[int, AtLeast(0), Below("source_vocab"), Below("self.output_vocab")] | None = 0
    embedding_norm: bool = False  # BART normalizes the embeddings
    output_bias: bool = False
    logit_bias: bool = False  # BART and Marian add one to the logits, which is not trained
    head: bool = True  # False: no output layer, the model returns the decoder's last hidden states

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
    def __init__(self, config: EncoderDecoderConfig) -> None:
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
    def __init__(self, config: EncoderDecoderConfig) -> None:
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
        past = 0 if cache is None else cache.layers[0].own.length
        causal = causal and x.shape[1] > 1  # a single token is the last one: all others are past
        if causal and (mask is not None or past):  # one mask for all layers, made once
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

    Padding is the token pad_id, or what attention_mask (of the source) and decoder_attention_mask say:
    True or 1 for a real token. Where the model has no pad_id, positions count all tokens, as in
    transformers. There the order of the arguments is input_ids, attention_mask, decoder_input_ids;
    here source and target come first, and masks have names.

    Shapes: source (B, S), target (B, L), attention_mask (B, S), decoder_attention_mask (B, L) -> logits
        (B, L, V), and the weights of every layer and head with return_weights. Without a head the last
        hidden states (B, L, D) in place of logits.
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
        self.encoder, self.decoder = self._stacks()
        self.output = None
        if config.head:
            self.output = nn.Linear(config.d_model, config.output_vocab, bias=config.output_bias)
        if config.head and config.tied_output:
            self.output.weight = self.target_embedding.table.weight
        fixed = torch.zeros(1, config.output_vocab) if config.head and config.logit_bias else None
        self.register_buffer("logit_bias", fixed)
        self.reset_parameters()

    @checked(like="self.source_embedding.table.weight", H="self.config.num_heads")
    def forward(
        self,
        source: Int[Tensor, "B S"],
        target: Int[Tensor, "B L"],
        *,
        attention_mask: RealSource | None = None,
        decoder_attention_mask: RealTarget | None = None,
        source_mask: Bool[Tensor, "#S #S"] | Bool[Tensor, "#B #H #S #S"] | None = None,
        target_mask: Bool[Tensor, "#L #L"] | Bool[Tensor, "#B #H #L #L"] | None = None,
        memory_mask: Bool[Tensor, "#L #S"] | Bool[Tensor, "#B #H #L #S"] | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L V"] | tuple[Float[Tensor, "B L V"], AttentionWeights]:
        """Predict the next token of every prefix of the target."""
        answer = self.encode(
            source, attention_mask=attention_mask, mask=source_mask, return_weights=return_weights
        )
        memory, encoder_weights = answer if return_weights else (answer, [])
        visible = combine_masks(self.padding(source, attention_mask), memory_mask)
        answer = self.decode(
            target, memory, decoder_attention_mask=decoder_attention_mask, mask=target_mask,
            memory_mask=visible, return_weights=return_weights,
        )  # fmt: skip
        if not return_weights:
            return answer
        logits, weights = answer
        weights.encoder = encoder_weights
        return logits, weights

    @checked(like="self.source_embedding.table.weight", H="self.config.num_heads")
    def encode(
        self,
        source: SourceIDs,
        *,
        attention_mask: RealSource | None = None,
        mask: Bool[Tensor, "#S #S"] | Bool[Tensor, "#B #H #S #S"] | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B S D"] | tuple[Float[Tensor, "B S D"], list[Tensor]]:
        """Encode the source: the memory (B, S, D) that the decoder attends to."""
        real, _ = tokens_so_far(source, self.config.pad_id, attention_mask)
        x = self.embed(self.source_embedding, source, real)
        mask = combine_masks(self.padding(source, attention_mask), mask)
        return self.encoder(x, mask=mask, return_weights=return_weights)

    @checked(
        like="self.source_embedding.table.weight",
        B="cache.real.shape.0",
        H="self.config.num_heads",
        D="self.config.d_model",
    )
    def decode(
        self,
        target: TargetIDs,
        memory: Float[Tensor, "B S D"],
        *,
        decoder_attention_mask: RealSoFar | None = None,
        mask: Bool[Tensor, "#L #T"] | Bool[Tensor, "#B #H #L #T"] | None = None,
        memory_mask: Bool[Tensor, "#L #S"] | Bool[Tensor, "#B #H #L #S"] | None = None,
        cache: DecoderCache | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L V"] | tuple[Float[Tensor, "B L V"], AttentionWeights]:
        """Predict the next tokens. memory_mask: `padding(source)`, and what else of it is masked.

        With a cache, target is the chunk that follows what the cache has seen; masks cover all of it,
        (L, everything so far) and (B, everything so far).
        """
        real, padded = tokens_so_far(
            target, self.config.pad_id, decoder_attention_mask, cache, name="decoder_attention_mask"
        )
        x = self.embed(self.target_embedding, target, real)
        mask = combine_masks(real[:, None, None, :], mask) if padded else mask
        answer = self.decoder(
            x, memory, mask=mask, memory_mask=memory_mask, cache=cache,
            return_weights=return_weights,
        )  # fmt: skip
        x, *weights = answer if return_weights else (answer,)
        logits = self.predict(x)  # B L V
        return (logits, AttentionWeights([], *weights)) if return_weights else logits

    @checked(like="self.source_embedding.table.weight", D="self.config.d_model")
    def predict(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L V"]:
        """The logits; without a head x itself."""
        x = x if self.output is None else self.output(x)
        return x if self.logit_bias is None else x + self.logit_bias

    @checked(like="self.source_embedding.table.weight")
    def embed(
        self, embedding: Embedding, ids: Int[Tensor, "B L"], real: Bool[Tensor, "B S"]
    ) -> Float[Tensor, "B L D"]:
        """Embed the last L of S tokens at their positions; real says which of the S are no padding."""
        positions = counted_positions(real, self.config.pad_id)
        return embedding(ids, positions[:, -ids.shape[1] :], real.shape[1])

    @checked
    def padding(
        self, ids: Int[Tensor, "B S"], attention_mask: RealSource | None = None
    ) -> Bool[Tensor, "B 1 1 S"] | None:
        """The padding mask; None if no token is padding."""
        real, padded = tokens_so_far(ids, self.config.pad_id, attention_mask)
        return real[:, None, None, :] if padded else None

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
        if self.output is not None:
            init_output(self.output, self.config)

    def _stacks(self) -> tuple[nn.Module, nn.Module]:
        """Encoder and decoder: a family may have layers of another kind."""
        return Encoder(self.config), Decoder(self.config)

    def _embedding(self, vocab: int, table: nn.Embedding | None = None) -> Embedding:
        norm = make_norm(self.config) if self.config.embedding_norm else None
        return Embedding(vocab, self.config, table=table, norm=norm)


def stack_constants(
    config: EncoderDecoderConfig,
) -> tuple[tuple[float, float], tuple[float, float]]:
    """(alpha, beta) of encoder and decoder: 1 and 1 unless the norm placement is "deepnorm"."""
    if config.norm_placement != "deepnorm":
        return (1.0, 1.0), (1.0, 1.0)
    return deepnorm_constants(config.num_encoder_layers, config.num_decoder_layers)
