"""Attention with learned sinks, as in GPT-OSS: a head may attend to nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..bounds import PositiveInt
from ..functional.sinks import sink_attention
from ..shapes import checked
from .multi_head import MultiHeadAttention

__all__ = ["SinkAttention"]


class SinkAttention(MultiHeadAttention):
    """Multi-head attention in which every head has a learned sink: see `sink_attention`.

    `sinks`, one number per head, start at 0, where a sink counts as much as a key of score 0. GPT-OSS has
    grouped-query attention, biases, rotary positions in halves, and a window of 128 in every other layer.

    Shapes: as of MultiHeadAttention.
    Raises: TypeError or ValueError that name the argument.
    Source: OpenAI 2025 (gpt-oss, gpt_oss/torch/model.py, AttentionBlock).
    """

    @checked
    def __init__(self, d_model: PositiveInt, num_heads: PositiveInt, **options: Any) -> None:
        super().__init__(d_model, num_heads, **options)
        self.sinks = nn.Parameter(torch.zeros(num_heads))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        """What the heads compute: `sink_attention`, with its options."""
        return sink_attention(query, key, value, self.sinks, **options)
