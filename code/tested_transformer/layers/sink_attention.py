"""Self-attention with learned sinks, as in GPT-OSS: a head may attend to nothing."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..bounds import PositiveInt
from ..errors import argument_error
from ..functional.sinks import sink_attention
from ..shapes import checked
from .cache import AttentionCache
from .multi_head import MultiHeadAttention, concat_heads, split_heads

__all__ = ["SinkAttention"]


class SinkAttention(MultiHeadAttention):
    """Multi-head self-attention in which every head has a learned sink: see `sink_attention`.

    `sinks`, one number per head, start at 0, where a sink counts as much as a key of score 0. GPT-OSS has
    grouped-query attention, biases, rotary positions in halves, and a window of 128 in every other layer.

    Shapes: as of MultiHeadAttention, without a context.
    Raises: TypeError or ValueError that name the argument; ValueError for a fixed cache.
    Source: OpenAI 2025 (gpt-oss, gpt_oss/torch/model.py, AttentionBlock).
    """

    @checked
    def __init__(self, d_model: PositiveInt, num_heads: PositiveInt, **options: Any) -> None:
        super().__init__(d_model, num_heads, **options)
        self.sinks = nn.Parameter(torch.zeros(num_heads))

    @checked(
        any_dtype="bias", like="self.query.weight", H="self.num_heads", D="self.query.in_features"
    )
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        *,
        mask: Bool[Tensor, "#L #T"] | Bool[Tensor, "#B #H #L #T"] | None = None,
        bias: Float[Tensor, "#L #T"] | Float[Tensor, "#B #H #L #T"] | None = None,
        causal: bool = False,
        position_ids: Int[Tensor, " L"] | Int[Tensor, "#B L"] | None = None,
        cache: AttentionCache | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L D"] | tuple[Float[Tensor, "B L D"], Float[Tensor, "B H L S"]]:
        """Attend, head by head; the options are those of `MultiHeadAttention`."""
        if cache is not None and cache.fixed:
            wanted = "one that grows: this layer is for self-attention"
            raise argument_error(ValueError, "cache", "a fixed one", wanted)
        query = split_heads(self.query(x), self.num_heads)  # B H L d
        key = split_heads(self.key(x), self.num_kv_heads)  # B G L d
        value = split_heads(self.value(x), self.num_kv_heads)  # B G L d
        query, key = self._rotate(query, key, position_ids, cache)
        key, value = (key, value) if cache is None else cache.append(key, value)  # B G S d
        answer = sink_attention(
            query, key, value, self.sinks, mask=mask, causal=causal, window=self.window,
            **self._biases(query, key, bias), dropout_p=self.dropout if self.training else 0.0,
            return_weights=return_weights, backend=self.backend,
        )  # fmt: skip
        heads, weights = answer if return_weights else (answer, None)
        output = self.output(concat_heads(heads))  # B L D
        return (output, weights) if return_weights else output
