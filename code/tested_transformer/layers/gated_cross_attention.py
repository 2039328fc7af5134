"""Gated cross-attention: tokens read another model's states through a gate that begins closed."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..bounds import PositiveInt
from ..functional.attention import attention
from ..shapes import checked
from .multi_head import MultiHeadAttention, concat_heads, split_heads
from .norms import LayerNorm

__all__ = ["GatedCrossAttention", "gated_cross_attention"]


@checked
def gated_cross_attention(
    tokens: Float[Tensor, "B L D"],
    nodes: Float[Tensor, "B n D_nodes"],
    w_query: Float[Tensor, "D Hd"],
    w_key: Float[Tensor, "D_nodes Hd"],
    w_value: Float[Tensor, "D_nodes Hd"],
    w_output: Float[Tensor, "Hd D"],
    gate: Float[Tensor, ""],
    num_heads: PositiveInt,
    *,
    real: Bool[Tensor, "B n"] | None = None,
) -> Float[Tensor, "B L D"]:
    """tokens + tanh(gate) times attention with queries from the tokens, keys and values from the nodes.

    With a gate of 0 the tokens come back as they are. Nodes have no order, and every token may attend to
    all nodes of its own graph that are `real`; without any, nothing is added.

    Shapes: tokens (B, L, D), nodes (B, n, D_nodes), w_query (D, Hd), w_key and w_value (D_nodes, Hd),
        w_output (Hd, D), gate (), real (B, n) -> (B, L, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Alayrac et al. 2022 (Flamingo), tanh gate; Bounsi et al. 2024 (TransNAR).
    """
    query = split_heads(tokens @ w_query, num_heads)  # B H L d
    key, value = (split_heads(nodes @ w, num_heads) for w in (w_key, w_value))  # B H n d
    mask = None if real is None else real[:, None, None]  # B 1 1 n
    heads = attention(query, key, value, mask=mask)
    return tokens + gate.tanh() * (concat_heads(heads) @ w_output)


class GatedCrossAttention(nn.Module):
    """`gated_cross_attention` with a norm before the queries, linear layers, and a gate that begins at 0.

    Shapes: x (B, L, D), nodes (B, n, d_nodes), real (B, n) -> (B, L, D).
    Raises: TypeError or ValueError that name the argument.
    Source: Alayrac et al. 2022 (Flamingo), tanh gate; Bounsi et al. 2024 (TransNAR).

    >>> layer, x = GatedCrossAttention(8, 2, d_nodes=5), torch.randn(1, 3, 8)
    >>> bool((layer(x, torch.randn(1, 4, 5)) == x).all())
    True
    """

    @checked
    def __init__(self, d_model: PositiveInt, num_heads: PositiveInt, d_nodes: PositiveInt) -> None:
        super().__init__()
        self.norm = LayerNorm(d_model)
        self.attention = MultiHeadAttention(d_model, num_heads, d_context=d_nodes, bias=False)
        self.gate = nn.Parameter(torch.zeros(()))

    @checked(like="self.gate", D="self.attention.query.in_features",
             D_nodes="self.attention.key.in_features")  # fmt: skip
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        nodes: Float[Tensor, "B n D_nodes"],
        *,
        real: Bool[Tensor, "B n"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Add what each token reads from the nodes, as far as the gate is open."""
        mask = None if real is None else real[:, None, None]  # B 1 1 n
        return x + self.gate.tanh() * self.attention(self.norm(x), nodes, mask=mask)
