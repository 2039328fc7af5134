"""Self-attention: queries, keys and values are three views of one sequence."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from ..bounds import PositiveInt, Probability
from ..functional.attention import attention
from ..functional.masks import Mask
from ..shapes import checked

__all__ = ["SelfAttention", "self_attention"]

OutputAndMaybeWeights = (
    Float[Tensor, "*batch L dv"] | tuple[Float[Tensor, "*batch L dv"], Float[Tensor, "*batch L L"]]
)


@checked
def self_attention(
    x: Float[Tensor, "*batch L D"],
    w_query: Float[Tensor, "D d"],
    w_key: Float[Tensor, "D d"],
    w_value: Float[Tensor, "D dv"],
    **options: Any,
) -> OutputAndMaybeWeights:
    """Let each token of a sequence look at all tokens of the same sequence.

    output = softmax((x w_query) (x w_key)^T / sqrt(d)) (x w_value)

    Shapes: x (*batch, L, D), w_query and w_key (D, d), w_value (D, dv) -> (*batch, L, dv), and the
        weights (*batch, L, L) with return_weights. The options are those of `attention`.
    Raises: TypeError for a wrong type or dtype, ValueError for a wrong shape; for the options as
        `attention`.
    Source: Vaswani et al. 2017, section 3.2.1, with Q, K and V from one sequence (section 3.2.3).

    >>> import torch
    >>> x, eye = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.eye(2)
    >>> self_attention(x, eye, eye, eye).tolist()  # equal tokens: a plain mean
    [[1.0, 0.0], [1.0, 0.0]]
    """
    return attention(x @ w_query, x @ w_key, x @ w_value, **options)


class SelfAttention(nn.Module):
    """Self-attention whose three projections are learned: layers `query`, `key` and `value`.

    The layers are made in that order, so a seed gives the same weights everywhere. Dropout acts on
    the attention weights, while training only.

    Shapes: x (*batch, L, d_in) -> (*batch, L, d_value), and the weights (*batch, L, L), after
        dropout, with return_weights. d_value defaults to d_out. mask and causal as in `attention`.
    Raises: TypeError or ValueError that name the argument.
    Source: Vaswani et al. 2017, section 3.2.
    """

    @checked
    def __init__(
        self,
        d_in: PositiveInt,
        d_out: PositiveInt,
        *,
        d_value: PositiveInt | None = None,
        bias: bool = False,
        dropout: Probability = 0.0,
    ) -> None:
        super().__init__()
        d_value = d_out if d_value is None else d_value
        self.query = nn.Linear(d_in, d_out, bias=bias)
        self.key = nn.Linear(d_in, d_out, bias=bias)
        self.value = nn.Linear(d_in, d_value, bias=bias)
        self.dropout = dropout

    @checked(like="self.query.weight", D="self.query.in_features")
    def forward(
        self,
        x: Float[Tensor, "*batch L D"],
        *,
        mask: Mask | None = None,
        causal: bool = False,
        return_weights: bool = False,
    ) -> OutputAndMaybeWeights:
        """Project x three times and attend."""
        return attention(
            self.query(x),  # *batch L d
            self.key(x),  # *batch L d
            self.value(x),  # *batch L dv
            mask=mask,
            causal=causal,
            dropout_p=self.dropout if self.training else 0.0,
            return_weights=return_weights,
        )
