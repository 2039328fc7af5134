"""A small Llama that counts, with caches of several sizes: fewer KV heads, or a latent (chapter 16)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..layers.latent_attention import LatentAttention
from ..models.language_model import LanguageModel
from .ch13_counting import LENGTH, LLAMA, counting_config

HEADS, D_HEAD = 4, 16  # D = 64
CACHES = {  # how many KV heads, or how many features of a latent and of a rotary key
    "MHA": {"num_kv_heads": 4},
    "GQA, 2 KV heads": {"num_kv_heads": 2},
    "MQA": {"num_kv_heads": 1},
    "MLA, 48 + 16": {"d_latent": 48, "d_rotary": 16},
    "MLA, 16 + 16": {"d_latent": 16, "d_rotary": 16},
    "MLA, 4 + 12": {"d_latent": 4, "d_rotary": 12},
    "MLA, 24 + 8": {"d_latent": 24, "d_rotary": 8},  # as many numbers as 16 + 16
}


class LatentHeads(LatentAttention):
    """Latent attention where a layer expects multi-head attention: it takes no bias."""

    def forward(self, x: Tensor, *, bias: None = None, **options: Any) -> Any:
        """As LatentAttention."""
        return super().forward(x, **options)


def small_cache_model(cache: str) -> LanguageModel:
    """The Llama of chapter 13; `cache`, a key of CACHES, says what it caches for each token."""
    changes = CACHES[cache]
    latent = "d_latent" in changes
    model = LanguageModel(counting_config(**LLAMA | ({} if latent else changes)))
    if latent:
        for layer in model.layers:
            layer.attention = LatentHeads(model.config.d_model, HEADS, d_head=D_HEAD, **changes)
        model.reset_parameters()
    return model


@torch.no_grad()
def cache_bytes_measured(model: nn.Module) -> float:
    """Bytes per token that the model's cache takes after one sequence."""
    cache = model.new_cache(capacity=LENGTH)
    model(torch.zeros(1, LENGTH, dtype=torch.long), cache=cache)
    return sum(layer.own.nbytes for layer in cache.layers) / LENGTH
