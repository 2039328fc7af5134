"""Attention with a scale of its own in place of 1 / sqrt(d)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..bounds import PositiveFloat, PositiveInt
from ..shapes import checked
from .multi_head import MultiHeadAttention

__all__ = ["OwnScaleAttention"]


class OwnScaleAttention(MultiHeadAttention):
    """Multi-head attention whose scores are multiplied by a number of its own: by 1 in T5.

    Shapes: as of MultiHeadAttention.
    Raises: TypeError or ValueError that name the argument.
    Source: transformers' T5Attention.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_heads: PositiveInt,
        *,
        scale: PositiveFloat,
        **options: Any,
    ) -> None:
        super().__init__(d_model, num_heads, **options)
        self.scale = scale

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        """What the heads compute: `attention` with this scale."""
        return super()._attend(query, key, value, scale=self.scale, **options)
