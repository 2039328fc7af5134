"""Linformer attention as a layer: its projections along the sequence are weights, made for one length."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..bounds import PositiveInt
from ..mixers.linformer import linformer_attention
from ..shapes import checked
from .multi_head import concat_heads, head_size, split_heads

__all__ = ["LinformerAttention"]


class LinformerAttention(nn.Module):
    """Bidirectional self-attention over `num_projected` mixtures of the keys: see `linformer_attention`.

    Linear layers `query`, `key`, `value` and `output`, made in that order, and two parameters of shape
    (H, num_projected, length), `key_projection` and `value_projection`. A shorter text is padded to `length`
    and masked; a longer one raises.

    Shapes: x (B, length, D), key_mask (B, length), True for a token that is no padding -> (B, length, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Wang et al. 2020 (Linformer).
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_heads: PositiveInt,
        length: PositiveInt,
        num_projected: PositiveInt,
        *,
        d_head: PositiveInt | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        d_head = head_size(d_model, num_heads, d_head)
        self.query = nn.Linear(d_model, num_heads * d_head, bias=bias)
        self.key = nn.Linear(d_model, num_heads * d_head, bias=bias)
        self.value = nn.Linear(d_model, num_heads * d_head, bias=bias)
        self.output = nn.Linear(num_heads * d_head, d_model, bias=bias)
        shape = (num_heads, num_projected, length)
        self.key_projection = nn.Parameter(torch.randn(shape) / length**0.5)
        self.value_projection = nn.Parameter(torch.randn(shape) / length**0.5)
        self.num_heads, self.length = num_heads, length

    @checked(like="self.query.weight", D="self.query.in_features", L="self.length")
    def forward(
        self, x: Float[Tensor, "B L D"], *, key_mask: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B L D"]:
        """Every token reads all projected keys."""
        query, key, value = (
            split_heads(layer(x), self.num_heads) for layer in (self.query, self.key, self.value)
        )  # B H L d
        heads = linformer_attention(
            query, key, value, self.key_projection, self.value_projection, key_mask=key_mask
        )
        return self.output(concat_heads(heads))  # B L D
