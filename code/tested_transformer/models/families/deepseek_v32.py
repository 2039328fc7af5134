"""DeepSeek-V3.2: DeepSeek-V3 whose layers read only the keys that an indexer selects.

The indexer rotates features in halves, the attention beside it neighbors. The Hadamard transform of the
released inference code, the same rotation of the indexer's queries and keys, changes no dot product and is
left out, as in transformers.

Source: DeepSeek-AI 2025 (DeepSeek-V3.2); transformers' DeepseekV32ForCausalLM and DeepseekV32Model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...layers.indexed_latent_attention import IndexerConfig
from ..family import Options, Stack, option_error
from ..language_model import LanguageModelConfig
from . import deepseek_v2, deepseek_v3


def read(options: Options) -> LanguageModelConfig:
    """Their options in our words."""
    options = dict(options) | {"first_k_dense_replace": num_dense(options)}
    if options["q_lora_rank"] is None:
        wanted = "an int: the indexer's queries are made of the compressed queries"
        raise option_error("q_lora_rank", None, wanted)
    layers, kinds = options["num_hidden_layers"], options["layer_types"]
    if kinds is not None and list(kinds) != ["indexed_attention"] * layers:
        wanted = f"{layers} times 'indexed_attention', one per layer"
        raise option_error("layer_types", kinds, wanted)
    experts = deepseek_v2.read_experts(
        options, True, scoring="sigmoid", normalize=options["norm_topk_prob"]
    )
    indexer = IndexerConfig(
        num_heads=options["index_n_heads"], d_head=options["index_head_dim"],
        num_keys=options["index_topk"],
    )  # fmt: skip
    return deepseek_v2.read_shared(
        options, FAMILY, experts, bias=False, position_layout="interleaved", indexer=indexer
    )


def num_dense(options: Options) -> int:
    """How many layers come before the first mixture of experts."""
    kinds, layers = options["mlp_layer_types"], options["num_hidden_layers"]
    if kinds is None:
        return min(options["first_k_dense_replace"], layers)
    first = list(kinds).count("dense")
    if list(kinds) != ["dense"] * first + ["sparse"] * (layers - first):
        wanted = f"{layers} entries, one per layer: 'dense' for the first ones, then 'sparse'"
        raise option_error("mlp_layer_types", kinds, wanted)
    return first


def write(config: LanguageModelConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    written = deepseek_v2.write_shared(config, FAMILY)
    first, layers = written["first_k_dense_replace"], config.num_layers
    if config.indexer is not None:
        written |= {
            "index_n_heads": config.indexer.num_heads, "index_head_dim": config.indexer.d_head,
            "index_topk": config.indexer.num_keys,
        }  # fmt: skip
    return written | {
        "norm_topk_prob": config.experts is None or config.experts.normalize,
        "mlp_layer_types": ["dense"] * first + ["sparse"] * (layers - first),
        "layer_types": ["indexed_attention"] * layers,
    }  # fmt: skip


OWN = {
    "max_position_embeddings": 163840, "index_n_heads": 64, "index_head_dim": 128,
    "index_topk": 2048, "mlp_layer_types": None, "layer_types": None,
}  # fmt: skip
DEFAULTS = deepseek_v3.FAMILY.defaults | OWN
INDEXER = {
    "attention.indexer.query": "self_attn.indexer.wq_b",
    "attention.indexer.key": "self_attn.indexer.wk",
    "attention.indexer.key_norm": "self_attn.indexer.k_norm",
    "attention.indexer.weights": "self_attn.indexer.weights_proj",
}
FAMILY = replace(
    deepseek_v3.FAMILY,
    model_type="deepseek_v32",
    architectures=("DeepseekV32ForCausalLM", "DeepseekV32Model"),
    headless="DeepseekV32Model",
    defaults={name: value for name, value in DEFAULTS.items() if name != "rope_interleave"},
    read=read,
    write=write,
    stacks=(Stack("layers", "model.layers", deepseek_v2.LAYER | deepseek_v3.BIAS | INDEXER),),
    fixed=deepseek_v3.FAMILY.fixed | {"mlp_bias": (False,)},
    float32=r".*\.(e_score_correction_bias|indexer\.weights_proj\.weight)",
)
