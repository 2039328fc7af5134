"""DeepSeek-V2: multi-head latent attention, and from some layer on a mixture of experts.

The two features of a rotated pair are neighbors. Some dense layers come first; every mixture has a
shared network beside the experts.

Source: DeepSeek-AI 2024 (DeepSeek-V2); transformers' DeepseekV2ForCausalLM and DeepseekV2Model.
"""

from __future__ import annotations

from typing import Any

from ...layers.latent_attention import LatentConfig
from ...layers.moe import ExpertsConfig
from ...positions.mscale import MscaleYarnScaling
from ...positions.scaled_rotary import YarnScaling
from ..family import Family, Options, Stack, named, option_error
from ..language_model import LanguageModelConfig
from . import llama

METHODS = {"greedy": "all", "group_limited_greedy": "grouped"}  # of whom the best are chosen


def read(options: Options) -> LanguageModelConfig:
    """Their options in our words."""
    heads = options["num_attention_heads"]
    if isinstance(heads, int) and heads > 0 and options["hidden_size"] % heads:
        wanted = f"a multiple of num_attention_heads = {heads}"  # a rule of transformers
        raise option_error("hidden_size", options["hidden_size"], wanted)
    grouped = named("topk_method", options["topk_method"], METHODS) == "grouped"
    experts = read_experts(options, grouped, scoring="softmax")
    return read_shared(options, FAMILY, experts, bias=options["mlp_bias"])


def read_shared(
    options: Options, family: Family, experts: ExpertsConfig | None, **more: Any
) -> LanguageModelConfig:
    """What DeepSeek-V2 and V3 have in common."""
    heads = options["num_attention_heads"]
    if options["num_key_value_heads"] not in (None, heads):
        wanted = f"num_attention_heads = {heads}: each has keys of its own"
        raise option_error("num_key_value_heads", options["num_key_value_heads"], wanted)
    base, scaling = llama.read_rotary(options, scalings_for(options))
    latent = LatentConfig(
        d_latent=options["kv_lora_rank"], d_rotary=options["qk_rope_head_dim"],
        d_value=options["v_head_dim"], d_query_latent=options["q_lora_rank"],
    )  # fmt: skip
    return LanguageModelConfig(
        options["vocab_size"], d_model=options["hidden_size"], num_heads=heads,
        d_head=options["qk_nope_head_dim"], num_layers=options["num_hidden_layers"],
        d_ff=options["intermediate_size"], dropout=0.0,
        activation=named("hidden_act", options["hidden_act"], llama.ACTIVATIONS),
        norm_placement="pre", norm="rms", norm_eps=options["rms_norm_eps"], positions="rotary",
        rotary_base=base, rotary_scaling=scaling, max_length=options["max_position_embeddings"],
        scale_embedding=False, tied_output=options["tie_word_embeddings"], pad_id=None,
        head=family.has_head(options), attention_bias=options["attention_bias"], latent=latent,
        experts=experts, **more,
    )  # fmt: skip


def read_experts(options: Options, grouped: bool, **more: Any) -> ExpertsConfig | None:
    """The mixture of every layer but the first ones; None where no layer is left."""
    if options["first_k_dense_replace"] >= options["num_hidden_layers"]:
        return None
    size, shared = options["moe_intermediate_size"], options["n_shared_experts"]
    if type(shared) is not int or shared < 1:
        raise option_error("n_shared_experts", shared, "an int of at least 1")
    groups = (options["n_group"], options["topk_group"]) if grouped else (1, 1)
    return ExpertsConfig(
        num_experts=options["n_routed_experts"], num_chosen=options["num_experts_per_tok"],
        d_expert=size, d_shared=shared * size, scale=options["routed_scaling_factor"],
        num_groups=groups[0], num_kept_groups=groups[1],
        num_dense=options["first_k_dense_replace"], **more,
    )  # fmt: skip


def scalings_for(options: Options) -> dict[str, type]:
    """What rope_type names: a YaRN with one of its two coefficients must have the other."""
    given = options["rope_scaling"] or options["rope_parameters"] or {}
    with_mscale = any(given.get(name) is not None for name in ("mscale", "mscale_all_dim"))
    return llama.SCALINGS | {"yarn": MscaleYarnScaling if with_mscale else YarnScaling}


def write(config: LanguageModelConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    written = write_shared(config, FAMILY) | {"mlp_bias": config.bias}
    grouped = config.experts is not None and config.experts.num_groups > 1
    return written | {"topk_method": "group_limited_greedy" if grouped else "greedy"}


def write_shared(config: LanguageModelConfig, family: Family) -> dict[str, Any]:
    """What DeepSeek-V2 and V3 have in common."""
    yarn = type(config.rotary_scaling)
    scalings = llama.SCALINGS | {"yarn": yarn if issubclass(yarn, YarnScaling) else YarnScaling}
    shared = llama.write_shared(config, family)
    del shared["head_dim"]
    return shared | write_latent(config) | write_experts(config) | {
        "attention_bias": config.attention_bias,
        "rope_parameters": llama.write_rotary(config, scalings),
    }  # fmt: skip


def write_latent(config: LanguageModelConfig) -> dict[str, Any]:
    """The sizes of the attention."""
    latent = config.latent
    if latent is None:  # another family's model
        return {}
    return {
        "kv_lora_rank": latent.d_latent, "q_lora_rank": latent.d_query_latent,
        "qk_nope_head_dim": config.d_head, "qk_rope_head_dim": latent.d_rotary,
        "v_head_dim": config.d_head if latent.d_value is None else latent.d_value,
    }  # fmt: skip


def write_experts(config: LanguageModelConfig) -> dict[str, Any]:
    """The mixture of experts, of one whole network for all tokens and many small ones."""
    experts = config.experts
    if experts is None:
        return {"first_k_dense_replace": config.num_layers, "num_experts_per_tok": 1}
    return {
        "n_routed_experts": experts.num_experts, "num_experts_per_tok": experts.num_chosen,
        "moe_intermediate_size": experts.d_expert,
        "n_shared_experts": (experts.d_shared or 0) // experts.d_expert,
        "routed_scaling_factor": experts.scale, "n_group": experts.num_groups,
        "topk_group": experts.num_kept_groups, "first_k_dense_replace": experts.num_dense,
    }  # fmt: skip


LAYER = {
    "residuals.0.norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.query_down": "self_attn.q_a_proj",
    "attention.query_norm": "self_attn.q_a_layernorm",
    "attention.query_up": "self_attn.q_b_proj",
    "attention.down": "self_attn.kv_a_proj_with_mqa",
    "attention.latent_norm": "self_attn.kv_a_layernorm",
    "attention.up": "self_attn.kv_b_proj",
    "attention.output": "self_attn.o_proj",
    "residuals.1.norm": "post_attention_layernorm",
    "feed_forward.gate_proj": "mlp.gate_proj",
    "feed_forward.up_proj": "mlp.up_proj",
    "feed_forward.down_proj": "mlp.down_proj",
    "feed_forward.router": "mlp.gate",
    "feed_forward.shared.gate_proj": "mlp.shared_experts.gate_proj",
    "feed_forward.shared.up_proj": "mlp.shared_experts.up_proj",
    "feed_forward.shared.down_proj": "mlp.shared_experts.down_proj",
    "feed_forward.experts.*.gate_proj": "mlp.experts.*.gate_proj",
    "feed_forward.experts.*.up_proj": "mlp.experts.*.up_proj",
    "feed_forward.experts.*.down_proj": "mlp.experts.*.down_proj",
}
DEFAULTS = {
    "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": None,
    "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False, "attention_bias": False, "attention_dropout": 0.0,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "first_k_dense_replace": 0, "n_routed_experts": 64, "n_shared_experts": 2,
    "num_experts_per_tok": None, "moe_intermediate_size": 1407, "routed_scaling_factor": 1.0,
    "n_group": None, "topk_group": None, **llama.ROTARY,
}  # fmt: skip
FAMILY = Family(
    model_type="deepseek_v2",
    architectures=("DeepseekV2ForCausalLM", "DeepseekV2Model"),
    headless="DeepseekV2Model",
    defaults=DEFAULTS | {"topk_method": "greedy", "mlp_bias": False},
    read=read,
    write=write,
    dropout={"attention_dropout": "attention"},
    modules=llama.FAMILY.modules,
    stacks=(Stack("layers", "model.layers", LAYER),),
    base="model.",
    fixed={
        # transformers reads norm_topk_prob and does not use it
        "norm_topk_prob": (False,), "scoring_func": ("softmax",), "moe_layer_freq": (1,),
    },
    ignored=frozenset(
        """
        pretraining_tp output_router_logits aux_loss_alpha seq_aux ep_size auto_map head_dim qk_head_dim
        """.split()
    ),  # head_dim and qk_head_dim follow from the other sizes; the rest is for training
    leftovers=llama.FAMILY.leftovers,
    frozen_padding=("embedding.table",),
)  # fmt: skip
