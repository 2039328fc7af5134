"""Multi-head differential attention, as in DiffLlama."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..bounds import NonNegativeInt, PositiveFloat, PositiveInt
from ..functional.differential import differential_attention, differential_lambda_init
from ..shapes import checked
from .multi_head import MultiHeadAttention

__all__ = ["DifferentialAttention"]


class DifferentialAttention(MultiHeadAttention):
    """Multi-head attention whose heads come in pairs: see `differential_attention`.

    lambda is exp(q1 k1) - exp(q2 k2) + its initial value, which depends on the number of the layer, counted
    from 0. Each pair's output is divided by its root mean square, token by token, and multiplied by 1 minus the
    initial value, so that gradients are as large as without the second half.

    Shapes: as of MultiHeadAttention; the weights are (B, H/2, L, S).
    Raises: TypeError or ValueError that name the argument.
    Source: Ye et al. 2025 (Differential Transformer); transformers' DiffLlamaAttention.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_heads: PositiveInt,
        *,
        layer: NonNegativeInt = 0,
        norm_eps: PositiveFloat = 1e-5,
        **options: Any,
    ) -> None:
        super().__init__(d_model, num_heads, **options)
        self.lambda_init, self.norm_eps = differential_lambda_init(layer), norm_eps
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            setattr(self, name, nn.Parameter(0.1 * torch.randn(self.d_head)))

    @property
    def lambda_(self) -> Tensor:
        """How much of the second half is taken off. Shapes: ()."""
        plus, minus = self.lambda_q1 @ self.lambda_k1, self.lambda_q2 @ self.lambda_k2
        return plus.exp() - minus.exp() + self.lambda_init

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        """What the pairs compute, normalized."""
        answer = differential_attention(query, key, value, self.lambda_, **options)
        heads, weights = answer if options.get("return_weights") else (answer, None)
        heads = nn.functional.rms_norm(heads, heads.shape[-1:], eps=self.norm_eps)
        heads = (1 - self.lambda_init) * heads
        return heads if weights is None else (heads, weights)
