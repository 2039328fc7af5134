"""Longformer's attention as a layer: two sets of projections, a window, and global tokens."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..bounds import PositiveInt
from ..mixers.longformer import longformer_attention
from ..shapes import checked
from .multi_head import concat_heads, head_size, split_heads

__all__ = ["LongformerAttention"]


class LongformerAttention(nn.Module):
    """Multi-head self-attention with a window and global tokens: see `longformer_attention`.

    Linear layers `query`, `key`, `value`, then `query_global`, `key_global`, `value_global` and `output`, made
    in that order. The second set is for what a global token reads; it is not used where no token is global.

    window: the keys fewer than `window` steps away, window - 1 on each side and the token's own. The library
        transformers counts both sides without the token: its attention_window is 2 (window - 1).

    Shapes: x (B, L, D), is_global (B, L), True for a global token, key_mask (B, L), True for a token that is no
        padding -> (B, L, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Beltagy et al. 2020 (Longformer).
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_heads: PositiveInt,
        *,
        window: PositiveInt,
        d_head: PositiveInt | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        inner = num_heads * head_size(d_model, num_heads, d_head)
        self.query = nn.Linear(d_model, inner, bias=bias)
        self.key = nn.Linear(d_model, inner, bias=bias)
        self.value = nn.Linear(d_model, inner, bias=bias)
        self.query_global = nn.Linear(d_model, inner, bias=bias)
        self.key_global = nn.Linear(d_model, inner, bias=bias)
        self.value_global = nn.Linear(d_model, inner, bias=bias)
        self.output = nn.Linear(inner, d_model, bias=bias)
        self.num_heads, self.window = num_heads, window

    @checked(like="self.query.weight", D="self.query.in_features")
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        is_global: Bool[Tensor, "B L"],
        *,
        key_mask: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Attend: global tokens to all tokens, the others to their window and to the global tokens."""
        local = self.query, self.key, self.value
        of_global = self.query_global, self.key_global, self.value_global
        heads = longformer_attention(
            *(split_heads(layer(x), self.num_heads) for layer in (*local, *of_global)),  # B H L d
            is_global,
            window=self.window,
            key_mask=key_mask,
        )
        return self.output(concat_heads(heads))  # B L D
