"""Nystrom attention as a layer, with the convolution of the values that Nystromformer adds to it."""

from __future__ import annotations

from typing import Annotated

from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..bounds import PositiveInt, Where
from ..mixers.nystrom import nystrom_attention
from ..shapes import checked
from .multi_head import concat_heads, head_size, split_heads

__all__ = ["NystromAttention"]

OddInt = Annotated[int, Where("an odd number above 0", lambda number: number > 0 and number % 2)]


class NystromAttention(nn.Module):
    """Bidirectional self-attention through landmarks: see `nystrom_attention`.

    Linear layers `query`, `key`, `value` and `output`, made in that order. With a conv_kernel, `conv` adds
    to each head a weighted sum of that many neighboring values, weighted alike at every position and for
    every feature: what landmarks blur, the neighborhood, comes back. The values of padding count as 0.

    Shapes: x (B, L, D), key_mask (B, L), True for a token that is no padding -> (B, L, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Xiong et al. 2021 (Nystromformer).
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_heads: PositiveInt,
        num_landmarks: PositiveInt,
        *,
        d_head: PositiveInt | None = None,
        bias: bool = True,
        iterations: PositiveInt = 6,
        conv_kernel: OddInt | None = None,
    ) -> None:
        super().__init__()
        d_head = head_size(d_model, num_heads, d_head)
        self.query = nn.Linear(d_model, num_heads * d_head, bias=bias)
        self.key = nn.Linear(d_model, num_heads * d_head, bias=bias)
        self.value = nn.Linear(d_model, num_heads * d_head, bias=bias)
        self.output = nn.Linear(num_heads * d_head, d_model, bias=bias)
        self.conv = None
        if conv_kernel is not None:
            self.conv = nn.Conv2d(
                num_heads, num_heads, (conv_kernel, 1), padding=(conv_kernel // 2, 0),
                groups=num_heads, bias=False,
            )  # fmt: skip
        self.num_heads, self.num_landmarks, self.iterations = num_heads, num_landmarks, iterations

    @checked(like="self.query.weight", D="self.query.in_features")
    def forward(
        self, x: Float[Tensor, "B L D"], *, key_mask: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B L D"]:
        """Every token reads the landmarks, and its neighbors' values."""
        query, key, value = (
            split_heads(layer(x), self.num_heads) for layer in (self.query, self.key, self.value)
        )  # B H L d
        heads = nystrom_attention(
            query, key, value, self.num_landmarks, iterations=self.iterations, key_mask=key_mask
        )
        if self.conv is not None:
            if key_mask is not None:
                value = value.masked_fill(~key_mask[:, None, :, None], 0.0)
            heads = heads + self.conv(value)
        return self.output(concat_heads(heads))  # B L D
