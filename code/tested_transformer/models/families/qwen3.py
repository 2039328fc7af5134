"""Qwen3: Llama with QK-norm: each query and key is normalized by RMSNorm before it is rotated.

Source: Yang et al. 2025 (Qwen3), section 2; transformers' Qwen3ForCausalLM and Qwen3Model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..family import Options, Stack, option_error
from ..language_model import LanguageModelConfig
from . import llama

FULL, SLIDING = "full_attention", "sliding_attention"


def read(options: Options) -> LanguageModelConfig:
    """Their options in our words."""
    return llama.read_shared(
        options, FAMILY, bias=False, attention_bias=options["attention_bias"], qk_norm=True,
        window=read_window(options),
    )  # fmt: skip


def read_window(options: Options) -> int | None:
    """The window of all layers; ValueError if some have one and others none."""
    window = options["sliding_window"] if options["use_sliding_window"] else None
    first, count = options["max_window_layers"], options["num_hidden_layers"]
    kinds = options["layer_types"]
    if kinds is None:
        kinds = [SLIDING if window is not None and i >= first else FULL for i in range(count)]
    if kinds == [FULL] * count:
        return None
    if kinds == [SLIDING] * count and window is not None:
        return window
    raise option_error("layer_types", kinds, f"the same for each of {count} layers")


def write(config: LanguageModelConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    windowed = config.window is not None
    return llama.write_shared(config, FAMILY) | {
        "attention_bias": config.attention_bias, "use_sliding_window": windowed,
        "sliding_window": config.window, "max_window_layers": 0 if windowed else config.num_layers,
        "layer_types": [SLIDING if windowed else FULL] * config.num_layers,
    }  # fmt: skip


OWN = {
    "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32, "head_dim": 128,
    "max_position_embeddings": 32768, "use_sliding_window": False, "sliding_window": 4096,
    "max_window_layers": 28, "layer_types": None,
}  # fmt: skip
NORMS = {"attention.query_norm": "self_attn.q_norm", "attention.key_norm": "self_attn.k_norm"}
FAMILY = replace(
    llama.FAMILY,
    model_type="qwen3",
    architectures=("Qwen3ForCausalLM", "Qwen3Model"),
    headless="Qwen3Model",
    defaults={n: v for n, v in llama.FAMILY.defaults.items() if n != "mlp_bias"} | OWN,
    read=read,
    write=write,
    stacks=(Stack("layers", "model.layers", llama.LAYER | NORMS),),
    ignored=frozenset(),
)
