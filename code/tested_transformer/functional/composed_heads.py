"""Attention heads that are mixed, token by token: on the scores before the softmax, on the weights after it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..shapes import checked
from .masks import Mask, causal_mask, combine_masks, masked_softmax

__all__ = ["Composition", "HeadMixing", "compose_heads", "composed_attention"]


class HeadMixing(NamedTuple):
    """How one side, queries or keys, mixes the H heads: for each of its T tokens a low rank and a gate.

    down and up have R vectors of H numbers: the first reads the heads, the second writes to them.
    """

    down: Float[Tensor, "..."]  # B T R H
    up: Float[Tensor, "..."]  # B T R H
    gate: Float[Tensor, "..."]  # B T H


class Composition(NamedTuple):
    """A matrix for all pairs of tokens, and what the query and the key of a pair add to it."""

    base: Float[Tensor, "..."]  # H H
    query: HeadMixing
    key: HeadMixing


@checked
def compose_heads(
    scores: Float[Tensor, "B H L S"],
    base: Float[Tensor, "H H"],
    query_down: Float[Tensor, "B L R H"],
    query_up: Float[Tensor, "B L R H"],
    query_gate: Float[Tensor, "B L H"],
    key_down: Float[Tensor, "B S R H"],
    key_up: Float[Tensor, "B S R H"],
    key_gate: Float[Tensor, "B S H"],
) -> Float[Tensor, "B H L S"]:
    """For each pair (i, j) the H numbers a_ij, times an H x H matrix that depends on i and on j.

    a base + (a down_i) up_i + a * gate_i + (a down_j) up_j + a * gate_j: five branches, added up.

    Shapes: scores (B, H, L, S), base (H, H), of queries (B, L, R, H) twice and (B, L, H), of keys (B, S, R, H)
        twice and (B, S, H) -> (B, H, L, S).
    Raises: TypeError or ValueError that name the argument.
    Source: Xiao et al. 2024 (DCMHA), Compose; Caiyun-AI/DCFormer, CrossHeadProjection.
    """
    mixed = torch.einsum("bmls,mn->bnls", scores, base)
    read = torch.einsum("bmls,blrm->brls", scores, query_down)
    mixed = mixed + torch.einsum("brls,blrn->bnls", read, query_up)
    read = torch.einsum("bmls,bsrm->brls", scores, key_down)
    mixed = mixed + torch.einsum("brls,bsrn->bnls", read, key_up)
    return mixed + scores * (query_gate.mT[..., :, None] + key_gate.mT[..., None, :])


@checked
def composed_attention(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H S d"],
    value: Float[Tensor, "B H S dv"],
    before: Composition,
    after: Composition,
    *,
    mask: Mask | None = None,
    causal: bool = False,
    return_weights: bool = False,
) -> Float[Tensor, "B H L dv"] | tuple[Float[Tensor, "B H L dv"], Float[Tensor, "B H L S"]]:
    """Scores, composed; the softmax over the allowed keys; weights, composed; times the values.

    The mask comes after the first composition: -inf times 0 is NaN, and a large negative number times a
    negative one is a large score. After the second the weights of a query need not sum to 1.

    Shapes: query (B, H, L, d), key (B, H, S, d), value (B, H, S, dv) -> (B, H, L, dv), and the composed
        weights (B, H, L, S) with return_weights.
    Raises: TypeError or ValueError that name the argument.
    Source: Xiao et al. 2024 (DCMHA).
    """
    scores = query @ key.mT * query.shape[-1] ** -0.5  # B H L S
    scores = compose_heads(scores, before.base, *before.query, *before.key)
    if causal:
        future = causal_mask(*scores.shape[-2:], device=scores.device)
        mask = future if mask is None else combine_masks(mask, future)
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    weights = masked_softmax(wide, mask if mask is None else mask.expand(scores.shape))
    weights = compose_heads(weights.to(scores.dtype), after.base, *after.query, *after.key)
    heads = weights @ value
    return (heads, weights) if return_weights else heads
