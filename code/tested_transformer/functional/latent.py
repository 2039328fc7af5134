"""Latent attention: the keys and values of all heads are made from one small vector per token, the latent."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..shapes import checked
from .attention import attention

__all__ = ["absorbed_latent_attention", "latent_attention"]


@checked
def latent_attention(
    query: Float[Tensor, "B H L d"],
    rotary_query: Float[Tensor, "B H L r"],
    latent: Float[Tensor, "B S c"],
    rotary_key: Float[Tensor, "B S r"],
    up_key: Float[Tensor, "H d c"],
    up_value: Float[Tensor, "H dv c"],
    **options: Any,
) -> Float[Tensor, "B H L dv"] | tuple[Float[Tensor, "B H L dv"], Float[Tensor, "B H L S"]]:
    """Make each head's keys and values from the latent, then attend as usual.

    A score has two parts: one of the head's own key, one of a rotary key that all heads share and that
    alone knows the position. options are those of `attention`; scale defaults to 1 / sqrt(d + r).

    Shapes: query (B, H, L, d), rotary_query (B, H, L, r), latent (B, S, c), rotary_key (B, S, r), up_key
        (H, d, c), up_value (H, dv, c) -> (B, H, L, dv), and the weights (B, H, L, S) with return_weights.
    Raises: as `attention`.
    Source: DeepSeek-AI 2024 (DeepSeek-V2), section 2.1, equations 9 to 19.
    """
    key = latent[:, None] @ up_key.mT  # B H S d
    value = latent[:, None] @ up_value.mT  # B H S dv
    shared = rotary_key[:, None].expand(-1, key.shape[1], -1, -1)  # B H S r
    query, key = torch.cat((query, rotary_query), -1), torch.cat((key, shared), -1)
    return attention(query, key, value, **options)


@checked
def absorbed_latent_attention(
    query: Float[Tensor, "B H L d"],
    rotary_query: Float[Tensor, "B H L r"],
    latent: Float[Tensor, "B S c"],
    rotary_key: Float[Tensor, "B S r"],
    up_key: Float[Tensor, "H d c"],
    up_value: Float[Tensor, "H dv c"],
    *,
    scale: float | None = None,
    return_weights: bool = False,
    **options: Any,
) -> Float[Tensor, "B H L dv"] | tuple[Float[Tensor, "B H L dv"], Float[Tensor, "B H L S"]]:
    """`latent_attention` without a key or a value: q (U c) = (q U) c, so the queries take the matrix.

    All heads then share one key and one value, the latent itself. What comes out is a mean of latents,
    and up_value turns it into the head's output. For few queries and a long cache this is far less work.

    Shapes: those of `latent_attention`.
    Raises: as `attention`.
    Source: DeepSeek-AI 2024 (DeepSeek-V2), section 2.1.2, "absorbed".
    """
    scale = (query.shape[-1] + rotary_query.shape[-1]) ** -0.5 if scale is None else scale
    options |= {"scale": scale, "return_weights": return_weights}
    query = torch.cat((query @ up_key, rotary_query), -1)  # B H L c+r
    key = torch.cat((latent, rotary_key), -1)[:, None]  # B 1 S c+r
    answer = attention(query, key, latent[:, None], **options)
    mean, weights = answer if return_weights else (answer, None)  # B H L c
    heads = mean @ up_value.mT  # B H L dv
    return (heads, weights) if return_weights else heads
