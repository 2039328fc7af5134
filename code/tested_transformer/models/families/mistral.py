"""Mistral: Llama with a window, in which each token attends to the last `sliding_window` tokens.

Source: Jiang et al. 2023; transformers' MistralForCausalLM and MistralModel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..family import Options
from ..language_model import LanguageModelConfig
from . import llama


def read(options: Options) -> LanguageModelConfig:
    """Their options in our words."""
    return llama.read_shared(options, FAMILY, bias=False, window=options["sliding_window"])


def write(config: LanguageModelConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    return llama.write_shared(config, FAMILY) | {"sliding_window": config.window}


BIASES = ("mlp_bias", "attention_bias")
OWN = {
    "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    "sliding_window": 4096,
}  # fmt: skip
FAMILY = replace(
    llama.FAMILY,
    model_type="mistral",
    architectures=("MistralForCausalLM", "MistralModel"),
    headless="MistralModel",
    defaults={n: v for n, v in llama.FAMILY.defaults.items() if n not in BIASES} | OWN,
    read=read,
    write=write,
    ignored=frozenset(),
)
