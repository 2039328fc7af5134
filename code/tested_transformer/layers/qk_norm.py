"""QK-norm: queries and keys are normalized head by head, so that scores cannot grow without bound."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..bounds import PositiveFloat, PositiveInt
from ..errors import argument_error
from ..shapes import checked
from .cache import AttentionCache
from .multi_head import MultiHeadAttention
from .norms import RMSNorm

__all__ = ["QKNormAttention"]


class QKNormAttention(MultiHeadAttention):
    """Self-attention with an RMSNorm of each query and each key, over the d features of a head.

    The norms, `query_norm` and `key_norm`, have one scale for all heads. They come before the
    rotation and the cache: a norm after the rotation would scale the two features of a pair
    differently, and the score would no longer depend on the distance alone.

    Shapes: as of MultiHeadAttention.
    Raises: TypeError or ValueError that name the argument; ValueError for a fixed cache.
    Source: Henry et al. 2020; Qwen3 (Yang et al. 2025), section 2.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_heads: PositiveInt,
        *,
        norm_eps: PositiveFloat = 1e-6,
        **options: Any,
    ) -> None:
        super().__init__(d_model, num_heads, **options)
        self.query_norm = RMSNorm(self.d_head, eps=norm_eps)
        self.key_norm = RMSNorm(self.d_head, eps=norm_eps)

    def _rotate(
        self,
        query: Tensor,
        key: Tensor,
        position_ids: Tensor | None,
        cache: AttentionCache | None,
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys of the new tokens, normalized, then rotated if the scheme rotates."""
        if cache is not None and cache.fixed:
            wanted = "one that grows: this layer is for self-attention"
            raise argument_error(ValueError, "cache", "a fixed one", wanted)
        return super()._rotate(self.query_norm(query), self.key_norm(key), position_ids, cache)
