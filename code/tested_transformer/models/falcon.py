"""Falcon: a decoder whose attention and feed-forward network stand side by side, with few KV heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal  # noqa: F401  (inherited annotations are read in this module, too)

from jaxtyping import Float, Int
from torch import Tensor

from ..bounds import AtLeast, Below, Divides, PositiveFloat, PositiveInt  # noqa: F401
from ..positions.alibi import ALiBi, alibi_slopes
from ..shapes import checked
from .language_model import ExpertsConfig, LatentConfig, Scaling  # noqa: F401
from .parallel import ParallelLanguageModel, ParallelLanguageModelConfig

__all__ = ["Falcon", "FalconConfig"]


@dataclass(frozen=True, kw_only=True)
class FalconConfig(ParallelLanguageModelConfig):
    """Sizes and choices of a Falcon.

    Falcon-7B has num_kv_heads=1 and num_parallel_norms=1; Falcon-40B and 180B have eight KV heads and two
    norms; Falcon-RW has num_parallel_norms=0, as many KV heads as heads, ALiBi and biases.

    Raises: TypeError or ValueError that name the field.
    Source: Almazrouei et al. 2023; Penedo et al. 2023 for Falcon-RW.
    """

    linear_bias: bool = False  # in the linear layers; norms have theirs


class Falcon(ParallelLanguageModel):
    """A `ParallelLanguageModel` whose linear layers have no biases, or whose ALiBi is Falcon-RW's.

    Shapes: as LanguageModel.
    Raises: TypeError or ValueError that name the argument.
    Source: Almazrouei et al. 2023 (The Falcon Series of Open Language Models); transformers' FalconModel.
    """

    @checked
    def __init__(self, config: FalconConfig) -> None:
        super().__init__(config)
        if not config.linear_bias:
            for layer in self.layers:
                layer.feed_forward.up_proj.bias = layer.feed_forward.down_proj.bias = None
        if config.positions == "alibi":
            self.alibi = KeyALiBi(config.num_heads, config.d_head)
            for layer in self.layers:
                layer.attention.positions = None


class KeyALiBi(ALiBi):
    """ALiBi as Falcon-RW was trained with it: slope x the key's position / sqrt(d), in bfloat16.

    Up to rounding it is ALiBi with slopes / sqrt(d): a softmax does not change when all scores of a query
    are larger by the same amount, here slope x the query's position. In bfloat16 it is not quite: beyond
    position 256 the product has too few bits, and so have slopes that are no power of two.

    Shapes: query_ids (L) or (B, L), key_ids (S) or (B, S) -> bias (B, H, 1, S), B = 1 without one.
    Source: transformers, build_alibi_tensor of Falcon.
    """

    @checked
    def __init__(self, num_heads: int, d_head: int) -> None:
        super().__init__(num_heads)
        self.d_head = d_head

    def bias(
        self, query_ids: Tensor, key_ids: Int[Tensor, "*ids S"], query: Tensor | None = None
    ) -> Float[Tensor, "B H 1 S"]:
        """The same bias for every query, in float32, whatever the query."""
        key_ids = key_ids if key_ids.ndim == 2 else key_ids[None]
        slopes = alibi_slopes(self.num_heads, device=key_ids.device).bfloat16()
        bias = slopes[:, None, None] * key_ids[:, None, None]  # B H 1 S, bfloat16
        return bias.float() / self.d_head**0.5
