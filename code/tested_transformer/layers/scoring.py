"""Attention with a learned scoring function: additive and bilinear."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor, nn

from ..bounds import PositiveInt, Probability
from ..functional.masks import Mask
from ..functional.scoring import additive_scores, attend, bilinear_scores, visible
from ..shapes import checked

__all__ = ["AdditiveAttention", "BilinearAttention"]


class AdditiveAttention(nn.Module):
    """Attention with additive scores: w_v^T tanh(W_q q + W_k k), no biases.

    Shapes: forward takes query (B, L, query_size), key (B, S, key_size), value (B, S, dv) and gives
        (B, L, dv), with return_weights also the weights (B, L, S), after dropout.
        key_lengths: (B), or (B, L) for a length of its own for each query; keys past it are hidden.
        mask: boolean, (L, S) or (B, L, S), broadcastable; True = query i may attend to key j.
    Raises: TypeError or ValueError that name the argument.
    Source: Bahdanau et al. 2015, appendix A.1.2.
    """

    @checked
    def __init__(
        self,
        query_size: PositiveInt,
        key_size: PositiveInt,
        hidden_size: PositiveInt,
        *,
        dropout: Probability = 0.0,
    ) -> None:
        super().__init__()
        self.w_query = nn.Linear(query_size, hidden_size, bias=False)
        self.w_key = nn.Linear(key_size, hidden_size, bias=False)
        self.w_v = nn.Linear(hidden_size, 1, bias=False)
        self.dropout = dropout

    @checked(like="self.w_query.weight", dq="self.w_query.in_features", dk="self.w_key.in_features")
    def forward(
        self,
        query: Float[Tensor, "B L dq"],
        key: Float[Tensor, "B S dk"],
        value: Float[Tensor, "B S dv"],
        *,
        key_lengths: Int[Tensor, " B"] | Int[Tensor, "B L"] | None = None,
        mask: Mask | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L dv"] | tuple[Float[Tensor, "B L dv"], Float[Tensor, "B L S"]]:
        """Look the values up; see the class."""
        scores = additive_scores(
            query, key, self.w_query.weight, self.w_key.weight, self.w_v.weight[0]
        )  # B L S
        allowed = visible(scores, key_lengths, mask)
        dropout_p = self.dropout if self.training else 0.0
        return attend(
            scores, value, allowed=allowed, dropout_p=dropout_p, return_weights=return_weights
        )


class BilinearAttention(nn.Module):
    """Attention with bilinear scores: q^T W k, no bias.

    Shapes, Raises: as AdditiveAttention.
    Source: Luong et al. 2015, section 3.1, "general".
    """

    @checked
    def __init__(
        self, query_size: PositiveInt, key_size: PositiveInt, *, dropout: Probability = 0.0
    ) -> None:
        super().__init__()
        self.w_score = nn.Linear(key_size, query_size, bias=False)  # its weight is W: dq dk
        self.dropout = dropout

    @checked(
        like="self.w_score.weight", dq="self.w_score.out_features", dk="self.w_score.in_features"
    )
    def forward(
        self,
        query: Float[Tensor, "B L dq"],
        key: Float[Tensor, "B S dk"],
        value: Float[Tensor, "B S dv"],
        *,
        key_lengths: Int[Tensor, " B"] | Int[Tensor, "B L"] | None = None,
        mask: Mask | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L dv"] | tuple[Float[Tensor, "B L dv"], Float[Tensor, "B L S"]]:
        """Look the values up; see the class."""
        scores = bilinear_scores(query, key, self.w_score.weight)  # B L S
        allowed = visible(scores, key_lengths, mask)
        dropout_p = self.dropout if self.training else 0.0
        return attend(
            scores, value, allowed=allowed, dropout_p=dropout_p, return_weights=return_weights
        )
