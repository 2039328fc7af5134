"""GPT-OSS: learned sinks, a window in every other layer, YaRN, and a mixture of clamped experts.

The released files hold their experts in four bits (MXFP4), which this package does not read: convert
them with transformers first.

Source: OpenAI 2025; transformers' GptOssForCausalLM and GptOssModel.
"""

from __future__ import annotations

from typing import Any

from ..family import Family, Options, Stack, option_error
from ..gpt_oss import GptOss, GptOssConfig
from . import llama

FULL, SLIDING = "full_attention", "sliding_attention"
YARN = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip


def read(options: Options) -> GptOssConfig:
    """Their options in our words."""
    given = dict(options)
    given["rope_theta"] = options["rope_theta"] or 150000.0
    if not (options["rope_scaling"] or options["rope_parameters"]):
        given["rope_parameters"] = YARN
    windowed = read_windowed(options)
    shared = llama.read_shared(
        given, FAMILY, bias=True, attention_bias=options["attention_bias"],
        window=options["sliding_window"] if any(windowed) else None,
    )  # fmt: skip
    return GptOssConfig(
        **vars(shared), windowed=windowed, num_experts=options["num_local_experts"],
        num_chosen=options["num_experts_per_tok"], limit=options["swiglu_limit"],
        alpha=options["swiglu_alpha"],
    )  # fmt: skip


def read_windowed(options: Options) -> tuple[bool, ...]:
    """Which layers have the window: every other one, the first included, unless layer_types says more."""
    count, kinds = options["num_hidden_layers"], options["layer_types"]
    if kinds is None and isinstance(count, int):
        return tuple(number % 2 == 0 for number in range(count))
    known = isinstance(kinds, list) and all(kind in (FULL, SLIDING) for kind in kinds)
    if not known or len(kinds) != count:
        wanted = f'"{FULL}" or "{SLIDING}" for each of {count} layers'
        raise option_error("layer_types", kinds, wanted)
    if SLIDING in kinds and options["sliding_window"] is None:
        raise option_error("sliding_window", None, f'an int, with "{SLIDING}" in layer_types')
    return tuple(kind == SLIDING for kind in kinds)


def write(config: GptOssConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    kinds = [SLIDING if windowed else FULL for windowed in config.windowed]
    return llama.write_shared(config, FAMILY) | {
        "attention_bias": config.attention_bias, "num_local_experts": config.num_experts,
        "num_experts_per_tok": config.num_chosen, "swiglu_limit": config.limit,
        "swiglu_alpha": config.alpha, "layer_types": kinds,
        "sliding_window": config.window or 128,  # where no layer has it, they need a number too
    }  # fmt: skip


ATTENTION = {ours: theirs for ours, theirs in llama.LAYER.items() if "feed_forward" not in ours}
EXPERTS = {
    f"feed_forward.{name}": f"mlp.experts.{name}"
    for name in ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias")
}
OWN = {"attention.sinks": "self_attn.sinks", "feed_forward.router": "mlp.router"}
FAMILY = Family(
    model_type="gpt_oss",
    architectures=("GptOssForCausalLM", "GptOssModel"),
    headless="GptOssModel",
    config=GptOssConfig,
    build=GptOss,
    defaults={
        "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
        "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "hidden_act": "silu", "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "attention_bias": True,
        "attention_dropout": 0.0, "sliding_window": 128, "layer_types": None,
        "num_local_experts": 128, "num_experts_per_tok": 4, "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0, **llama.ROTARY,
    },
    read=read,
    write=write,
    dropout={"attention_dropout": "attention"},
    modules=llama.FAMILY.modules,
    stacks=(Stack("layers", "model.layers", ATTENTION | OWN | EXPERTS),),
    base="model.",
    ignored=frozenset(
        "output_router_logits router_aux_loss_coef experts_per_token initial_context_length".split()
    ),  # for training, or said a second time
    leftovers=llama.FAMILY.leftovers,
    frozen_padding=("embedding.table",),
)  # fmt: skip
