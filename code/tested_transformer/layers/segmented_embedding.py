"""BERT's embedding: token, position and segment, normalized."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import (
    argument_error,
    check_count,
    check_probability,
    shape_of,
)
from ..positions.learned import LearnedPositions, check_indices
from .norms import LayerNorm

__all__ = ["SegmentedEmbedding"]


class SegmentedEmbedding(nn.Module):
    """BERT's input: token + segment + learned position embedding, normalized, with dropout.

    Parts `token`, `segment` (nn.Embedding), `position` (LearnedPositions), `norm` and `dropout`. The
    vector of padding_idx starts at zero and gets no gradient.

    Shapes: tokens and segments (*batch, L), position_ids broadcastable to them -> (*batch, L, D).
        Without segments all are segment 0; without position_ids they are 0 ... L - 1.
    Raises: TypeError or ValueError that name the argument.
    Source: Devlin et al. 2019, section 3, figure 2.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        *,
        max_length: int = 512,
        num_segments: int = 2,
        padding_idx: int | None = 0,
        dropout: float = 0.1,
        eps: float = 1e-12,
    ) -> None:
        super().__init__()
        check_count("vocab_size", vocab_size)
        check_count("d_model", d_model)
        check_count("num_segments", num_segments)
        check_probability("dropout", dropout)
        if padding_idx is not None:
            check_count("padding_idx", padding_idx, least=0)
            if padding_idx >= vocab_size:
                raise argument_error(ValueError, "padding_idx", padding_idx, f"below {vocab_size}")
        self.token = nn.Embedding(vocab_size, d_model, padding_idx=padding_idx)
        self.segment = nn.Embedding(num_segments, d_model)
        self.position = LearnedPositions(max_length, d_model)
        self.norm = LayerNorm(d_model, eps=eps)
        self.dropout = nn.Dropout(dropout)
        with torch.no_grad():
            self.segment.weight.normal_(std=0.02)
            self.token.weight.normal_(std=0.02)
            if padding_idx is not None:
                self.token.weight[padding_idx] = 0

    def forward(
        self,
        tokens: Int[Tensor, "*batch L"],
        segments: Int[Tensor, "*batch L"] | None = None,
        position_ids: Int[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "*batch L D"]:
        """Look up, add, normalize."""
        check_indices("tokens", tokens, self.token.num_embeddings)
        if tokens.ndim == 0:
            raise argument_error(ValueError, "tokens", "shape ()", "at least 1 axis")
        segments = torch.zeros_like(tokens) if segments is None else segments
        check_indices("segments", segments, self.segment.num_embeddings)
        if segments.shape != tokens.shape:
            came, wanted = f"shape {shape_of(segments)}", f"that of tokens, {shape_of(tokens)}"
            raise argument_error(ValueError, "segments", came, wanted)
        if position_ids is None:
            position_ids = torch.arange(tokens.shape[-1], device=tokens.device)
        x = self.position.embed(self.token(tokens) + self.segment(segments), position_ids)
        return self.dropout(self.norm(x))
