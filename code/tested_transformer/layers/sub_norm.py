"""BitNet's sublayers: an RMSNorm in front of the last linear layer of attention and feed-forward network."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from ..bounds import PositiveFloat, PositiveInt
from ..shapes import checked
from .gated_feed_forward import GatedFeedForward
from .multi_head import MultiHeadAttention
from .norms import RMSNorm

__all__ = ["SubNormAttention", "SubNormFeedForward"]


class SubNormAttention(MultiHeadAttention):
    """Multi-head attention with an RMSNorm, `sub_norm`, of the heads side by side before the output layer.

    Shapes: as of MultiHeadAttention.
    Raises: TypeError or ValueError that name the argument.
    Source: transformers' BitNetAttention.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_heads: PositiveInt,
        *,
        norm_eps: PositiveFloat = 1e-5,
        **options: Any,
    ) -> None:
        super().__init__(d_model, num_heads, **options)
        self.sub_norm = RMSNorm(self.output.in_features, eps=norm_eps)

    def _project(self, heads: Float[Tensor, "B L n"], x: Float[Tensor, "B L D"]) -> Tensor:
        """The normalized heads, projected."""
        return super()._project(self.sub_norm(heads), x)


class SubNormFeedForward(GatedFeedForward):
    """down_proj(sub_norm(relu(gate_proj(x))^2 x up_proj(x))): a squared ReLU as the gate, then an RMSNorm.

    Shapes: (*batch, D) -> (*batch, D), by way of (*batch, d_ff).
    Raises: TypeError or ValueError that name the argument.
    Source: So et al. 2021 (Primer), squared ReLU; transformers' BitNetMLP.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        d_ff: PositiveInt,
        *,
        norm_eps: PositiveFloat = 1e-5,
        bias: bool = False,
    ) -> None:
        super().__init__(d_model, d_ff, bias=bias)
        self.sub_norm = RMSNorm(d_ff, eps=norm_eps)

    @checked(like="self.up_proj.weight")
    def transform(self, x: Float[Tensor, "..."]) -> Tensor:
        """Gate, normalize, project down."""
        gate = nn.functional.relu(self.gate_proj(x)).square()
        return self.down_proj(self.sub_norm(self.dropout(gate * self.up_proj(x))))
