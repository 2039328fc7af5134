"""Multi-head latent attention: a cache of one latent and one rotary key per token, for all heads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..bounds import PositiveFloat, PositiveInt, Probability
from ..functional.attention import Backend
from ..functional.latent import absorbed_latent_attention, latent_attention
from ..positions.protocol import PositionScheme
from ..positions.rotary import RotaryPositions
from ..shapes import check_fields, checked
from .cache import AttentionCache
from .multi_head import concat_heads, split_heads
from .norms import RMSNorm

__all__ = ["LatentAttention", "LatentConfig"]


@dataclass(frozen=True, kw_only=True)
class LatentConfig:
    """The sizes of a latent attention, besides the model's d_model, num_heads and d_head.

    Raises: TypeError or ValueError that name the field.
    Source: DeepSeek-AI 2024 (DeepSeek-V2), section 2.1 and table 1.
    """

    d_latent: PositiveInt
    d_rotary: PositiveInt
    d_value: PositiveInt | None = None  # features per head; None: those of a head's key
    d_query_latent: PositiveInt | None = None  # None: queries come from the token itself

    def __post_init__(self) -> None:
        check_fields(self)


class LatentAttention(nn.Module):
    """Multi-head latent attention (MLA), causal self-attention with a small cache.

    `down` makes of each token a latent of d_latent features and a rotary key of d_rotary, both for all
    heads; `up` makes of the latent each head's key and value. The cache keeps d_latent + d_rotary numbers
    per token, whatever the number of heads. Linear layers `query`, `down`, `up` and `output`; with
    d_query_latent the queries come from a latent too: `query_down`, `query_norm`, `query_up`, no `query`.

    positions: a scheme whose `rotate` turns rotary queries and keys; RotaryPositions by default. scale:
        of the scores, 1 / sqrt(d_head + d_rotary) by default.

    Shapes: x (B, L, D) -> (B, L, D), and the attention weights (B, H, L, S), after dropout, with
        return_weights. S is L, and everything so far with a cache.
    Raises: TypeError or ValueError that name the argument.
    Source: DeepSeek-AI 2024 (DeepSeek-V2), section 2.1.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_heads: PositiveInt,
        *,
        d_head: PositiveInt,
        d_latent: PositiveInt,
        d_rotary: PositiveInt,
        d_value: PositiveInt | None = None,
        d_query_latent: PositiveInt | None = None,
        bias: bool = False,
        dropout: Probability = 0.0,
        norm_eps: PositiveFloat = 1e-6,
        positions: PositionScheme | None = None,
        scale: PositiveFloat | None = None,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        d_value = d_head if d_value is None else d_value
        d_queries = num_heads * (d_head + d_rotary)
        self.query = self.query_down = self.query_norm = self.query_up = None
        if d_query_latent is None:
            self.query = nn.Linear(d_model, d_queries, bias=False)
        else:
            self.query_down = nn.Linear(d_model, d_query_latent, bias=bias)
            self.query_norm = RMSNorm(d_query_latent, eps=norm_eps)
            self.query_up = nn.Linear(d_query_latent, d_queries, bias=False)
        self.down = nn.Linear(d_model, d_latent + d_rotary, bias=bias)
        self.latent_norm = RMSNorm(d_latent, eps=norm_eps)
        self.up = nn.Linear(d_latent, num_heads * (d_head + d_value), bias=False)
        self.output = nn.Linear(num_heads * d_value, d_model, bias=bias)
        self.positions = RotaryPositions(d_rotary) if positions is None else positions
        self.num_heads, self.d_head, self.d_rotary = num_heads, d_head, d_rotary
        self.d_latent, self.d_value, self.scale = d_latent, d_value, scale
        self.dropout, self.backend = dropout, backend

    @checked(like="self.down.weight", H="self.num_heads", D="self.down.in_features")
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        *,
        mask: Bool[Tensor, "#L #T"] | Bool[Tensor, "#B #H #L #T"] | None = None,
        causal: bool = False,
        position_ids: Int[Tensor, " L"] | Int[Tensor, "#B L"] | None = None,
        cache: AttentionCache | None = None,
        absorbed: bool | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L D"] | tuple[Float[Tensor, "B L D"], Float[Tensor, "B H L S"]]:
        """Attend, head by head; mask, causal and position_ids are those of `MultiHeadAttention`.

        absorbed: which of the two equal forms computes it, see `absorbed_latent_attention`; by default
        the absorbed one where the cache holds earlier tokens.
        """
        query, rotary_query = self._queries(x).split((self.d_head, self.d_rotary), -1)  # B H L .
        latent, rotary_key = self.down(x).split((self.d_latent, self.d_rotary), -1)  # B L .
        latent, rotary_key = self.latent_norm(latent)[:, None], rotary_key[:, None]  # B 1 L .
        if position_ids is None:
            start = 0 if cache is None else cache.length
            position_ids = torch.arange(start, start + x.shape[1], device=x.device)
        rotary_query, rotary_key = self.positions.rotate(rotary_query, rotary_key, position_ids)
        if cache is not None:
            latent, rotary_key = cache.append(latent, rotary_key)  # B 1 S .
        if absorbed is None:
            absorbed = latent.shape[2] > x.shape[1]
        attend = absorbed_latent_attention if absorbed else latent_attention
        answer = attend(
            query, rotary_query, latent[:, 0], rotary_key[:, 0], *self._up(), mask=mask,
            causal=causal, scale=self.scale,
            dropout_p=self.dropout if self.training else 0.0,
            return_weights=return_weights, backend=self.backend,
        )  # fmt: skip
        heads, weights = answer if return_weights else (answer, None)
        output = self.output(concat_heads(heads))  # B L D
        return (output, weights) if return_weights else output

    def _queries(self, x: Tensor) -> Tensor:
        """Queries and rotary queries of all heads, side by side: (B, H, L, d + r)."""
        if self.query is not None:
            return split_heads(self.query(x), self.num_heads)
        latent = self.query_norm(self.query_down(x))  # B L c'
        return split_heads(self.query_up(latent), self.num_heads)

    def _up(self) -> tuple[Tensor, Tensor]:
        """The matrices that make keys and values of a latent: (H, d, c) and (H, dv, c)."""
        per_head = self.up.weight.unflatten(0, (self.num_heads, -1))
        return per_head.split((self.d_head, self.d_value), 1)
