"""Differential attention: one softmax minus another, so that what both attend to cancels."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..bounds import NonNegativeInt
from ..errors import argument_error
from ..shapes import checked
from .attention import attention

__all__ = ["differential_attention", "differential_lambda_init"]


@checked
def differential_lambda_init(layer: NonNegativeInt) -> float:
    """Where lambda starts in a layer, counted from 0: from 0.2 it rises towards 0.8.

    Raises: TypeError or ValueError that name the argument.
    Source: Ye et al. 2025 (Differential Transformer); transformers' DiffLlamaAttention.

    >>> differential_lambda_init(0), round(differential_lambda_init(27), 4)
    (0.20000000000000007, 0.7998)
    """
    return 0.8 - 0.6 * math.exp(-0.3 * layer)


@checked
def differential_attention(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B G S d"],
    value: Float[Tensor, "B G S dv"],
    lambda_: Float[Tensor, ""],
    *,
    return_weights: bool = False,
    **options: Any,
) -> Float[Tensor, "B h L dw"] | tuple[Float[Tensor, "B h L dw"], Float[Tensor, "B h L S"]]:
    """The weights of head i minus lambda times those of head i + H/2, for each of H/2 pairs.

    A pair has the values of two KV heads side by side: those of head g and of head g + G/2. The weights of
    a query sum to 1 - lambda, and some are negative.

    options: those of `attention`, such as causal and mask.

    Shapes: query (B, H, L, d), key (B, G, S, d), value (B, G, S, dv), H and G even, lambda_ () ->
        (B, H/2, L, 2 dv), and the weights (B, H/2, L, S) with return_weights.
    Raises: TypeError or ValueError that name the argument.
    Source: Ye et al. 2025 (Differential Transformer); transformers' DiffLlamaAttention.
    """
    for name, heads in (("query", query), ("key", key)):
        if heads.shape[1] % 2:
            raise argument_error(ValueError, name, f"{heads.shape[1]} heads", "an even number")
    pairs = torch.cat(value.chunk(2, 1), -1).repeat(1, 2, 1, 1)  # B G S 2dv: the same pairs twice
    answer = attention(query, key, pairs, return_weights=return_weights, **options)
    several = answer if return_weights else (answer,)
    found = tuple(_minus(each, lambda_) for each in several)
    return found if return_weights else found[0]


def _minus(heads: Float[Tensor, "B H L n"], lambda_: Tensor) -> Float[Tensor, "B h L n"]:
    """The first half of the heads minus lambda times the second."""
    first, second = heads.chunk(2, 1)
    return first - lambda_.to(heads) * second
