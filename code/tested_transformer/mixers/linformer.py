"""Linformer: attention to k learned mixtures of the keys in place of the n keys themselves."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from ..functional.attention import attention
from ..shapes import checked

__all__ = ["linformer_attention"]


@checked
def linformer_attention(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H S d"],
    value: Float[Tensor, "B H S dv"],
    key_projection: Float[Tensor, "#H k S"],
    value_projection: Float[Tensor, "#H k S"],
    *,
    key_mask: Bool[Tensor, "B S"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "B H L dv"]:
    """Project the S keys and values along the sequence to k of each, then attend to those.

    The projections fix the length S. They may be shared by the heads (a first axis of 1), by keys and
    values (the same matrix twice) and by the layers. It is not causal: every projected key may
    contain every token. key_mask is True for real tokens; padding is zeroed before it is projected.

    scale: of the scores, 1 / sqrt(d) by default.

    Shapes: query (B, H, L, d), key (B, H, S, d), value (B, H, S, dv), the projections (H, k, S) or
        (1, k, S), key_mask (B, S) -> (B, H, L, dv).
    Raises: TypeError or ValueError that name the argument.
    Source: Wang et al. 2020 (Linformer), multi-head linear attention.
    """
    if key_mask is not None:
        padding = ~key_mask[:, None, :, None]  # B 1 S 1
        key, value = key.masked_fill(padding, 0.0), value.masked_fill(padding, 0.0)
    projected_key = key_projection @ key  # B H k d
    projected_value = value_projection @ value  # B H k dv
    return attention(query, projected_key, projected_value, scale=scale)
