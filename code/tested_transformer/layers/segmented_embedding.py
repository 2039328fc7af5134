"""BERT's embedding: token, position and segment, normalized."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..bounds import AtLeast, Below, PositiveFloat, PositiveInt, Probability
from ..positions.learned import LearnedPositions
from ..shapes import checked
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

    @checked
    def __init__(
        self,
        vocab_size: PositiveInt,
        d_model: PositiveInt,
        *,
        max_length: PositiveInt = 512,
        num_segments: PositiveInt = 2,
        padding_idx: Annotated[int, AtLeast(0), Below("vocab_size")] | None = 0,
        dropout: Probability = 0.1,
        eps: PositiveFloat = 1e-12,
    ) -> None:
        super().__init__()
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

    @checked(like="self.token.weight")
    def forward(
        self,
        tokens: Annotated[Int[Tensor, "*batch L"], AtLeast(0), Below("self.token.num_embeddings")],
        segments: Annotated[
            Int[Tensor, "*batch L"], AtLeast(0), Below("self.segment.num_embeddings")
        ]
        | None = None,
        position_ids: Int[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "*batch L D"]:
        """Look up, add, normalize."""
        segments = torch.zeros_like(tokens) if segments is None else segments
        if position_ids is None:
            position_ids = torch.arange(tokens.shape[-1], device=tokens.device)
        x = self.position.embed(self.token(tokens) + self.segment(segments), position_ids)
        return self.dropout(self.norm(x))
