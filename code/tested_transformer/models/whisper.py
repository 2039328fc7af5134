"""Whisper: an encoder that reads a log-mel spectrogram, and a decoder that writes what was said."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ..bounds import AtLeast, AtMost, Below, Divides, PositiveInt, Probability, Where
from ..errors import argument_error
from ..layers.blocks import (
    Embedding,
    counted_positions,
    init_embedding,
    init_linear_layers,
    remove_biases,
    tokens_so_far,
)
from ..layers.cache import DecoderCache
from ..layers.config import EncoderDecoderConfig
from ..shapes import checked
from .transformer import AttentionWeights, Decoder, Encoder

__all__ = ["AudioStem", "Whisper", "WhisperConfig", "audio_positions"]

TokenIDs = Annotated[Int[Tensor, "B L"], AtLeast(0), Below("self.config.vocab_size")]
RealTokens = Annotated[Bool[Tensor, "B L"] | Int[Tensor, "B L"], AtLeast(0), AtMost(1)]
RealSoFar = Annotated[Bool[Tensor, "B T"] | Int[Tensor, "B T"], AtLeast(0), AtMost(1)]
Width = Annotated[int, Where("an even number of at least 4", lambda n: n >= 4 and n % 2 == 0)]

# --- Configuration --------------------------------------------------------------------------------


@dataclass(frozen=True)
class WhisperConfig(EncoderDecoderConfig):
    """Every size and choice of a Whisper. Without arguments: Whisper tiny, multilingual.

    num_positions: encoder states, each of two frames of the spectrogram. max_length: tokens of the
    transcript. head: whether there is an output layer; its matrix is the embedding matrix.

    Raises: TypeError or ValueError that name the field.
    Source: Radford et al. 2022, table 1 and section 2.2.
    """

    vocab_size: PositiveInt = 51_865
    _: KW_ONLY
    num_mels: PositiveInt = 80
    num_positions: PositiveInt = 1500
    max_length: PositiveInt = 448
    num_encoder_layers: PositiveInt = 4
    num_decoder_layers: PositiveInt = 4
    d_model: Width = 384
    num_heads: Annotated[int, AtLeast(1), Divides("d_model")] = 6
    dropout: Probability = 0.0
    activation: str = "gelu"
    norm_placement: Literal["pre"] = "pre"
    final_norm: Literal[True] = True
    positions: Literal["learned"] = "learned"  # of the decoder
    scale_embedding: Literal[False] = False
    tied_output: Literal[True] = True
    pad_id: Literal[None] = None  # padding is known by decoder_attention_mask alone
    head: bool = True


# --- From a spectrogram to encoder states ---------------------------------------------------------


@checked
def audio_positions(length: PositiveInt, d_model: Width) -> Float[Tensor, "L D"]:
    """Whisper's sinusoids: all sines, then all cosines, of wavelengths from 2 pi to 20,000 pi.

    The i-th of D/2 angles is pos / 10000^(i / (D/2 - 1)), so that the last divides by 10,000 itself; the
    paper of 2017 divides i by D/2 and never reaches it.

    Shapes: numbers -> (length, D).
    Raises: TypeError or ValueError that name the argument.
    Source: whisper/model.py, sinusoids; Tensor2Tensor, get_timing_signal_1d.
    """
    steps = torch.linspace(0, 1, d_model // 2, dtype=torch.float64)  # i / (D/2 - 1)
    angles = torch.arange(length)[:, None] * (-math.log(10000) * steps).exp()  # L D/2
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()


class AudioStem(nn.Module):
    """Two convolutions over time with a GELU after each, the second with stride 2, plus fixed positions.

    Each state hears five frames, 65 ms. `positions` (num_positions, D) is a buffer that is saved.

    Shapes: features (B, num_mels, 2 x num_positions) -> (B, num_positions, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Radford et al. 2022, section 2.2.
    """

    @checked
    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        width, self.num_frames = config.d_model, 2 * config.num_positions
        self.first = nn.Conv1d(config.num_mels, width, kernel_size=3, padding=1)
        self.second = nn.Conv1d(width, width, kernel_size=3, stride=2, padding=1)
        self.register_buffer("positions", audio_positions(config.num_positions, width))
        self.dropout = nn.Dropout(config.dropout)
        for layer in (self.first, self.second):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    @checked(like="self.first.weight", M="self.first.in_channels", F="self.num_frames")
    def forward(self, features: Float[Tensor, "B M F"]) -> Float[Tensor, "B S D"]:
        """Half as many states as frames."""
        x = functional.gelu(self.first(features))  # B D F
        x = functional.gelu(self.second(x)).transpose(1, 2)  # B S D
        return self.dropout(x + self.positions)


# --- The model ------------------------------------------------------------------------------------


class Whisper(nn.Module):
    """Hear a spectrogram, predict every next token of the transcript.

    The encoder's input has one length, that of the padded audio: nothing in it is masked. Padding of
    the transcript is what decoder_attention_mask says; positions count all tokens, as in transformers.

    Shapes: input_features (B, num_mels, 2 x num_positions), decoder_input_ids and
        decoder_attention_mask (B, L), True or 1 for a real token -> logits (B, L, V), and the weights
        of every layer and head with return_weights. Without a head the last hidden states (B, L, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Radford et al. 2022, figure 1.

    >>> config = WhisperConfig(9, num_mels=5, num_positions=3, d_model=4, num_heads=2, max_length=7)
    >>> tuple(Whisper(config)(torch.zeros(1, 5, 6), torch.tensor([[1, 2]])).shape)
    (1, 2, 9)
    """

    @checked
    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.config = config
        self.stem = AudioStem(config)
        self.encoder = Encoder(config)
        self.embedding = Embedding(config.vocab_size, config)
        self.decoder = Decoder(config)
        self.output = None
        if config.head:
            self.output = nn.Linear(config.d_model, config.vocab_size, bias=False)
            self.output.weight = self.embedding.table.weight
        for stack in (self.encoder, self.decoder):
            remove_biases(stack, "key")  # it would add the same to all scores of a query
            init_linear_layers(stack, config.norm_placement, 1.0)
        init_embedding(self.embedding.table, config)

    @checked(like="self.embedding.table.weight")
    def forward(
        self,
        input_features: Float[Tensor, "B M F"],
        decoder_input_ids: Int[Tensor, "B L"],
        *,
        decoder_attention_mask: RealTokens | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L V"] | tuple[Float[Tensor, "B L V"], AttentionWeights]:
        """Predict the next token of every prefix of the transcript."""
        answer = self.encode(input_features, return_weights=return_weights)
        memory, encoder_weights = answer if return_weights else (answer, [])
        answer = self.decode(
            decoder_input_ids, memory, decoder_attention_mask=decoder_attention_mask,
            return_weights=return_weights,
        )  # fmt: skip
        if not return_weights:
            return answer
        logits, weights = answer
        weights.encoder = encoder_weights
        return logits, weights

    def encode(
        self, input_features: Float[Tensor, "B M F"], *, return_weights: bool = False
    ) -> Float[Tensor, "B S D"] | tuple[Float[Tensor, "B S D"], list[Tensor]]:
        """The encoder states (B, S, D) that the decoder attends to."""
        return self.encoder(self.stem(input_features), return_weights=return_weights)

    @checked(like="self.embedding.table.weight", B="cache.real.shape.0", D="self.config.d_model")
    def decode(
        self,
        decoder_input_ids: TokenIDs,
        memory: Float[Tensor, "B S D"],
        *,
        decoder_attention_mask: RealSoFar | None = None,
        memory_mask: Literal[None] = None,
        cache: DecoderCache | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L V"] | tuple[Float[Tensor, "B L V"], AttentionWeights]:
        """Predict the next tokens; with a cache, the ids are the chunk that follows what it has seen.

        memory_mask is None: see `padding`. With a cache the mask covers everything so far.
        """
        name, length = "decoder_attention_mask", decoder_input_ids.shape[1]
        real, padded = tokens_so_far(
            decoder_input_ids, None, decoder_attention_mask, cache, name=name
        )
        if real.shape[1] > self.config.max_length:
            wanted = f"at most max_length = {self.config.max_length} tokens"
            raise argument_error(ValueError, "decoder_input_ids", real.shape[1], wanted)
        positions = counted_positions(real, None)[:, -length:]
        x = self.embedding(decoder_input_ids, positions, real.shape[1])  # B L D
        answer = self.decoder(
            x, memory, mask=real[:, None, None, :] if padded else None, memory_mask=memory_mask,
            cache=cache, return_weights=return_weights,
        )  # fmt: skip
        x, *weights = answer if return_weights else (answer,)
        logits = x if self.output is None else self.output(x)  # B L V
        return (logits, AttentionWeights([], *weights)) if return_weights else logits

    @checked(like="self.embedding.table.weight", M="self.config.num_mels", F="self.stem.num_frames")
    def padding(self, input_features: Float[Tensor, "B M F"]) -> None:
        """None: silence at the end of the audio is heard as silence, and never masked."""

    @checked
    def new_cache(self, *, capacity: PositiveInt = 64) -> DecoderCache:
        """An empty cache for `decode`."""
        return DecoderCache(self.config.num_decoder_layers, capacity=capacity)
