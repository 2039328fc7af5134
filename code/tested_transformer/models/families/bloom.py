"""BLOOM: ALiBi, a norm of the embeddings; query, key and value in one matrix, head by head.

Source: Le Scao et al. 2022; transformers' BloomForCausalLM and BloomModel.
"""

from __future__ import annotations

from typing import Any

from ..bloom import Bloom, BloomConfig
from ..family import Family, Options, Stack


def read(options: Options) -> BloomConfig:
    """Their options in our words; some sizes have two names, of which the second counts if it is there."""
    twice = {
        "hidden_size": "n_embed",
        "n_head": "num_attention_heads",
        "n_layer": "num_hidden_layers",
    }
    sizes = {n: options[n if options[other] is None else other] for n, other in twice.items()}
    return BloomConfig(
        options["vocab_size"], d_model=sizes["hidden_size"], num_heads=sizes["n_head"],
        num_layers=sizes["n_layer"], dropout=0.0, norm_eps=options["layer_norm_epsilon"],
        tied_output=options["tie_word_embeddings"], head=FAMILY.has_head(options),
    )  # fmt: skip


def write(config: BloomConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    return FAMILY.architecture(config) | {
        "vocab_size": config.vocab_size, "hidden_size": config.d_model,
        "n_head": config.num_heads, "n_layer": config.num_layers,
        "layer_norm_epsilon": config.norm_eps, "tie_word_embeddings": config.tied_output,
    }  # fmt: skip


LAYER = {
    "residuals.0.norm": "input_layernorm",
    "attention.query attention.key attention.value": "self_attention.query_key_value",
    "attention.output": "self_attention.dense",
    "residuals.1.norm": "post_attention_layernorm",
    "feed_forward.up_proj": "mlp.dense_h_to_4h",
    "feed_forward.down_proj": "mlp.dense_4h_to_h",
}
FAMILY = Family(
    model_type="bloom",
    architectures=("BloomForCausalLM", "BloomModel"),
    headless="BloomModel",
    config=BloomConfig,
    build=Bloom,
    defaults={
        "vocab_size": 250880, "hidden_size": 64, "n_layer": 2, "n_head": 8, "n_embed": None,
        "num_attention_heads": None, "num_hidden_layers": None, "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True, "hidden_dropout": 0.0, "attention_dropout": 0.0,
    },
    read=read,
    write=write,
    dropout={"hidden_dropout": "residual", "attention_dropout": "attention"},
    modules={
        "embedding.table": "transformer.word_embeddings",
        "embedding.norm": "transformer.word_embeddings_layernorm",
        "norm": "transformer.ln_f", "output": "lm_head",
    },
    stacks=(Stack("layers", "transformer.h", LAYER),),
    base="transformer.",
    fixed={"apply_residual_connection_post_layernorm": (False,), "n_inner": (None,)},
    ignored=frozenset(  # how it was trained: on several devices, with fused kernels
        "pretraining_tp slow_but_exact attention_softmax_in_fp32 bias_dropout_fusion "
        "masked_softmax_fusion unk_token_id offset_alibi seq_length skip_bias_add "
        "skip_bias_add_qkv".split()
    ),
    by_group=True,
)  # fmt: skip
