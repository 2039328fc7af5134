"""DeepSeek-V3: DeepSeek-V2 whose router scores by a sigmoid, with a bias for the choice alone.

The layer for multi-token prediction that the released files have after the last one is left out, as in
transformers.

Source: DeepSeek-AI 2024 (DeepSeek-V3); transformers' DeepseekV3ForCausalLM and DeepseekV3Model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..family import Options, Stack
from ..language_model import LanguageModelConfig
from . import deepseek_v2


def read(options: Options) -> LanguageModelConfig:
    """Their options in our words."""
    experts = deepseek_v2.read_experts(
        options, True, scoring="sigmoid", normalize=options["norm_topk_prob"]
    )
    layout = "interleaved" if options["rope_interleave"] else "halves"
    return deepseek_v2.read_shared(options, FAMILY, experts, bias=False, position_layout=layout)


def write(config: LanguageModelConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    return deepseek_v2.write_shared(config, FAMILY) | {
        "norm_topk_prob": config.experts is None or config.experts.normalize,
        "rope_interleave": config.position_layout == "interleaved",
    }


OWN = {
    "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "max_position_embeddings": 4096, "first_k_dense_replace": 3, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
    "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4, "norm_topk_prob": True,
    "rope_interleave": True,
}  # fmt: skip
BIAS = {"feed_forward.choice_bias": "mlp.gate.e_score_correction_bias"}
FAMILY = replace(
    deepseek_v2.FAMILY,
    model_type="deepseek_v3",
    architectures=("DeepseekV3ForCausalLM", "DeepseekV3Model"),
    headless="DeepseekV3Model",
    defaults=deepseek_v2.DEFAULTS | OWN,
    read=read,
    write=write,
    stacks=(Stack("layers", "model.layers", deepseek_v2.LAYER | BIAS),),
    fixed={"scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",), "moe_layer_freq": (1,)},
    ignored=deepseek_v2.FAMILY.ignored | {"num_nextn_predict_layers", "num_mtp_layers"},
    leftovers=rf"{deepseek_v2.FAMILY.leftovers}|model\.layers\.61\..*",
    float32=r".*\.e_score_correction_bias",
)
