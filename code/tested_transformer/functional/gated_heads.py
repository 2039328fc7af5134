"""A gate on what attention returns: a sigmoid of the token, for each number of each head."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from ..shapes import checked

__all__ = ["gated_heads"]


@checked
def gated_heads(
    heads: Float[Tensor, "*batch n"],
    x: Float[Tensor, "*batch D"],
    gate: Float[Tensor, "n D"],
    output: Float[Tensor, "E n"],
) -> Float[Tensor, "*batch E"]:
    """(heads * sigmoid(x gate^T)) output^T: the gate comes after attention, before the output layer.

    Shapes: heads (*batch, n), n = H d, x (*batch, D), gate (n, D), output (E, n) -> (*batch, E).
    Raises: TypeError or ValueError that name the argument.
    Source: Qiu et al. 2025 (gated attention); transformers' Qwen3NextAttention.
    """
    return (heads * (x @ gate.mT).sigmoid()) @ output.mT
