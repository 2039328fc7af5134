"""Attention with a gate on its output: a sigmoid of the token for each number of each head."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from ..bounds import PositiveInt
from ..shapes import checked
from .multi_head import MultiHeadAttention

__all__ = ["GatedAttention"]


class GatedAttention(MultiHeadAttention):
    """Multi-head attention whose heads are multiplied by sigmoid(gate(x)) before the output layer.

    Attention weights sum to 1, so that plain attention always returns something; a gate near 0 returns almost nothing.

    Shapes: as of MultiHeadAttention.
    Raises: TypeError or ValueError that name the argument.
    Source: Qiu et al. 2025 (gated attention); transformers' Qwen3NextAttention.
    """

    @checked
    def __init__(self, d_model: PositiveInt, num_heads: PositiveInt, **options: Any) -> None:
        super().__init__(d_model, num_heads, **options)
        self.gate = nn.Linear(d_model, self.output.in_features, bias=self.query.bias is not None)

    def _project(self, heads: Float[Tensor, "B L n"], x: Float[Tensor, "B L D"]) -> Tensor:
        """The gated heads, projected."""
        return super()._project(heads * self.gate(x).sigmoid(), x)
