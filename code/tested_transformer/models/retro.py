"""RETRO: a decoder that reads retrieved neighbors of its chunks by chunked cross-attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..bounds import AtLeast, AtMost, Below, Divides, PositiveInt
from ..errors import argument_error, shape_of
from ..layers.chunked_cross_attention import ChunkedCrossAttention
from ..layers.feed_forward import FeedForward
from ..layers.multi_head import MultiHeadAttention
from ..layers.norms import RMSNorm
from ..positions.learned import LearnedPositions
from ..shapes import check_fields, checked

__all__ = ["Retro", "RetroConfig"]


@dataclass(frozen=True, kw_only=True)
class RetroConfig:
    """Sizes of a RETRO; its last `num_retrieval_layers` decoder layers read neighbors.

    max_length: of a sequence, and of a neighbor with its continuation. pad_id: a neighbor's tokens that
    nobody reads.

    Raises: TypeError or ValueError that name the field.
    Source: Borgeaud et al. 2022 (RETRO).
    """

    vocab_size: PositiveInt
    chunk_size: PositiveInt
    d_model: PositiveInt = 64
    num_heads: Annotated[int, AtLeast(1), Divides("d_model")] = 4
    num_layers: PositiveInt = 2
    num_retrieval_layers: Annotated[int, AtLeast(0), AtMost("num_layers")] = 1
    num_encoder_layers: PositiveInt = 1
    max_length: PositiveInt = 128
    pad_id: Annotated[int, AtLeast(0), Below("vocab_size")] = 0

    def __post_init__(self) -> None:
        check_fields(self)


class Retro(nn.Module):
    """A pre-norm decoder; without neighbors it is a plain one.

    The encoder of neighbors runs once, at the first layer that reads them, and attends to what the decoder
    made of the chunk so far. Rows are padded on the right, if at all: chunks count from the first token.

    Shapes: ids (B, L), neighbors (B, N, k, r), N = L // chunk_size -> logits (B, L, V).
    Raises: TypeError or ValueError that name the argument.
    Source: Borgeaud et al. 2022 (RETRO); the order of sublayers: labml_nn/transformers/retro/model.py.
        Not theirs: learned positions, where they have relative ones.
    """

    @checked
    def __init__(self, config: RetroConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = LearnedPositions(config.max_length, config.d_model)
        self.encoder = NeighborEncoder(config) if config.num_retrieval_layers else None
        plain = config.num_layers - config.num_retrieval_layers
        self.layers = nn.ModuleList(
            RetroLayer(config, reads=number >= plain) for number in range(config.num_layers)
        )
        self.norm = RMSNorm(config.d_model)
        self.output = nn.Linear(config.d_model, config.vocab_size, bias=False)

    @checked
    def forward(
        self,
        ids: Annotated[Int[Tensor, "B L"], AtLeast(0), Below("self.config.vocab_size")],
        neighbors: Annotated[Int[Tensor, "B N k r"], AtLeast(0), Below("self.config.vocab_size")]
        | None = None,
    ) -> Float[Tensor, "B L V"]:
        """Predict the next tokens."""
        num_chunks = ids.shape[1] // self.config.chunk_size
        if neighbors is not None and neighbors.shape[1] != num_chunks:
            wanted = f"neighbors of L // chunk_size = {num_chunks} chunks"
            raise argument_error(ValueError, "neighbors", f"shape {shape_of(neighbors)}", wanted)
        x = self._embed(ids)  # B L D
        memory = real = None
        for layer in self.layers:
            x = x + layer.attention(layer.norms[0](x), causal=True)
            if layer.reads is not None and neighbors is not None:
                if memory is None:
                    real = neighbors.flatten(2) != self.config.pad_id  # B N k*r
                    memory = self.encoder(self._embed(neighbors), neighbors, x)  # B N k*r D
                x = x + layer.reads(layer.reading_norm(x), memory, mask=real)
            x = x + layer.feed_forward(layer.norms[1](x))
        return self.output(self.norm(x))

    def _embed(self, ids: Int[Tensor, "*batch L"]) -> Float[Tensor, "*batch L D"]:
        """Token and position embeddings."""
        return self.positions.embed(
            self.embedding(ids), torch.arange(ids.shape[-1], device=ids.device)
        )


class RetroLayer(nn.Module):
    """The parts of one decoder layer: self-attention, in some layers chunked cross-attention, feed-forward.

    Source: as Retro.
    """

    def __init__(self, config: RetroConfig, *, reads: bool) -> None:
        super().__init__()
        D, H = config.d_model, config.num_heads
        self.attention = MultiHeadAttention(D, H, bias=False)
        self.reads = ChunkedCrossAttention(D, H, config.chunk_size) if reads else None
        self.reading_norm = RMSNorm(D) if reads else None
        self.feed_forward = FeedForward(D, 4 * D, bias=False)
        self.norms = nn.ModuleList(RMSNorm(D) for _ in range(2))


class NeighborEncoder(nn.Module):
    """Bidirectional layers over each neighbor, which attend to the chunk that retrieved it.

    Source: as Retro.
    """

    def __init__(self, config: RetroConfig) -> None:
        super().__init__()
        D, H = config.d_model, config.num_heads
        self.chunk_size, self.pad_id = config.chunk_size, config.pad_id
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "attention": MultiHeadAttention(D, H, bias=False),
                    "cross": MultiHeadAttention(D, H, bias=False),
                    "feed_forward": FeedForward(D, 4 * D, bias=False),
                    "norms": nn.ModuleList(RMSNorm(D) for _ in range(3)),
                }
            )
            for _ in range(config.num_encoder_layers)
        )
        self.chunk_norm, self.norm = RMSNorm(D), RMSNorm(D)

    def forward(
        self,
        e: Float[Tensor, "B N k r D"],
        neighbors: Int[Tensor, "B N k r"],
        x: Float[Tensor, "B L D"],
    ) -> Float[Tensor, "B N kr D"]:
        """Encode the embedded neighbors e, given what the decoder made of their chunks, x."""
        batch, num_chunks, k, r, width = e.shape
        chunks = x[:, : num_chunks * self.chunk_size].unflatten(1, (num_chunks, self.chunk_size))
        chunks = self.chunk_norm(chunks)  # B N m D
        chunks = chunks[:, :, None].expand(-1, -1, k, -1, -1).flatten(0, 2)  # BNk m D
        mask = (neighbors != self.pad_id).flatten(0, 2)[:, None, None]  # BNk 1 1 r
        e = e.flatten(0, 2)  # BNk r D
        for layer in self.layers:
            norms = layer["norms"]
            e = e + layer["attention"](norms[0](e), mask=mask)
            e = e + layer["cross"](norms[1](e), chunks)
            e = e + layer["feed_forward"](norms[2](e))
        return self.norm(e).view(batch, num_chunks, k * r, width)
