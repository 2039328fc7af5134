"""T5: an encoder and a decoder whose only positions are a bias for each bucket of distances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from ..bounds import AtLeast, Below, PositiveFloat, PositiveInt, Probability  # noqa: F401
from ..layers.blocks import (
    DecoderLayer,
    EncoderLayer,
    make_attention,
    make_feed_forward,
    make_norm,
    make_residual,
)
from ..layers.feed_forward import FeedForward
from ..layers.gated_feed_forward import GatedFeedForward
from ..layers.own_scale import OwnScaleAttention
from ..layers.stack import Stack
from ..positions.t5_buckets import T5Positions, check_buckets
from ..shapes import checked
from .transformer import Decoder, Encoder, Transformer, TransformerConfig

__all__ = ["T5", "T5Config"]


@dataclass(frozen=True, kw_only=True)
class T5Config(TransformerConfig):
    """Sizes and choices of a T5; most of its choices are the defaults.

    The first T5 has tied_output=True, and there the decoder's output is divided by sqrt(D) before the output
    layer; version 1.1 and Flan-T5 have tied_output=False, gated=True and activation="gelu_tanh".

    Raises: TypeError or ValueError that name the field.
    Source: Raffel et al. 2020 (T5), section 2.1; Shazeer 2020 for version 1.1.
    """

    num_heads: PositiveInt = 8  # times d_head may be more or less than d_model
    d_head: PositiveInt = 64
    bias: bool = False
    norm: str = "rms"
    norm_placement: Literal["pre"] = "pre"
    norm_eps: PositiveFloat = 1e-6
    positions: Literal["none"] = "none"  # in the embeddings
    scale_embedding: bool = False
    pad_id: Annotated[int, AtLeast(0), Below("source_vocab"), Below("self.output_vocab")] | None = (
        None
    )
    gated: bool = False  # see GatedFeedForward
    num_buckets: PositiveInt = 32  # see t5_buckets, as max_distance
    max_distance: PositiveInt = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        check_buckets(self.num_buckets, self.max_distance, bidirectional=True)
        check_buckets(self.num_buckets, self.max_distance, bidirectional=False)


class T5(Transformer):
    """A `Transformer` of T5's layers, called in the same way.

    Shapes: as Transformer.
    Raises: TypeError or ValueError that name the argument.
    Source: Raffel et al. 2020 (T5), section 2.1; transformers' T5ForConditionalGeneration.
    """

    @checked
    def __init__(self, config: T5Config) -> None:
        super().__init__(config)

    @checked(like="self.source_embedding.table.weight", D="self.config.d_model")
    def predict(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L V"]:
        """The logits, from smaller vectors where the output layer is the embedding matrix."""
        shrunk = self.output is not None and self.config.tied_output
        return super().predict(x * self.config.d_model**-0.5 if shrunk else x)

    def _stacks(self) -> tuple[nn.Module, nn.Module]:
        """Encoder and decoder, whose layers share a scheme of positions each."""
        return T5Encoder(self.config), T5Decoder(self.config)


class T5Encoder(Encoder):
    """N encoder layers with one T5Positions, which all of them use.

    Shapes: as Encoder.
    Source: Raffel et al. 2020, section 2.1.
    """

    def __init__(self, config: T5Config) -> None:
        nn.Module.__init__(self)
        options = attention_options(config) | {"positions": scheme(config, bidirectional=True)}
        self.layers = Stack(
            EncoderLayer(config, feed_forward=feed_forward(config), **options)
            for _ in range(config.num_encoder_layers)
        )
        self.norm = make_norm(config)


class T5Decoder(Decoder):
    """N decoder layers with one T5Positions, which all of them use.

    Shapes: as Decoder.
    Source: Raffel et al. 2020, section 2.1.
    """

    def __init__(self, config: T5Config) -> None:
        nn.Module.__init__(self)
        positions = scheme(config, bidirectional=False)
        layers = config.num_decoder_layers
        self.layers = Stack(T5DecoderLayer(config, positions) for _ in range(layers))
        self.norm = make_norm(config)
        self.d_model = config.d_model


class T5DecoderLayer(DecoderLayer):
    """A decoder layer with positions in the attention to the target, and none in that to the source.

    Shapes: as DecoderLayer.
    Source: Raffel et al. 2020, section 2.1.
    """

    def __init__(self, config: T5Config, positions: T5Positions) -> None:
        nn.Module.__init__(self)
        options = attention_options(config)
        self.attention = make_attention(config, positions=positions, **options)
        self.cross_attention = make_attention(config, **options)
        self.feed_forward = feed_forward(config)
        self.residuals = nn.ModuleList(make_residual(config, 1.0) for _ in range(3))


def attention_options(config: T5Config) -> dict[str, Any]:
    """What T5's attention has of its own: its head dimension, and scores that are not scaled."""
    return {"kind": OwnScaleAttention, "scale": 1.0, "d_head": config.d_head}


def scheme(config: T5Config, *, bidirectional: bool) -> T5Positions:
    """The positions of a stack."""
    return T5Positions(
        config.num_heads, num_buckets=config.num_buckets, max_distance=config.max_distance,
        bidirectional=bidirectional,
    )  # fmt: skip


def feed_forward(config: T5Config) -> FeedForward:
    """A feed-forward network, gated or not."""
    if not config.gated:
        return make_feed_forward(config)
    return GatedFeedForward(
        config.d_model, config.d_ff, activation=config.activation, bias=config.bias,
        dropout=config.dropout,
    )  # fmt: skip
