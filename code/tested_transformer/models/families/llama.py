"""Llama: pre-norm by RMSNorm, rotary positions, SwiGLU, grouped-query attention, no biases.

The two features of a rotated pair lie half a head apart: transformers has permuted the rows of query
and key of Meta's files.

Source: Touvron et al. 2023; Llama Team 2024; transformers' LlamaForCausalLM and LlamaModel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from ...positions.scaled_rotary import LinearScaling, Llama3Scaling, Scaling, YarnScaling
from ..family import Family, Options, Stack, named, option_error
from ..language_model import LanguageModelConfig

ACTIVATIONS = {"silu": "swiglu", "swish": "swiglu"}
ROTARY = {"rope_theta": None, "rope_scaling": None, "rope_parameters": None}
SCALINGS = {"linear": LinearScaling, "llama3": Llama3Scaling, "yarn": YarnScaling}
NAMES = {  # our fields that have another name in rope_parameters
    "original_length": "original_max_position_embeddings", "fast_turns": "beta_fast",
    "slow_turns": "beta_slow",
}  # fmt: skip


def read(options: Options) -> LanguageModelConfig:
    """Their options in our words."""
    biases = {"bias": options["mlp_bias"], "attention_bias": options["attention_bias"]}
    config = read_shared(options, FAMILY, **biases)
    if config.d_model % config.num_heads:  # a rule of transformers, for this family alone
        wanted = f"a multiple of num_attention_heads = {config.num_heads}"
        raise option_error("hidden_size", config.d_model, wanted)
    return config


def read_shared(options: Options, family: Family, **more: Any) -> LanguageModelConfig:
    """What Llama, Mistral and Qwen3 have in common."""
    base, scaling = read_rotary(options)
    return LanguageModelConfig(
        options["vocab_size"], d_model=options["hidden_size"],
        num_heads=options["num_attention_heads"], num_kv_heads=options["num_key_value_heads"],
        d_head=options["head_dim"], num_layers=options["num_hidden_layers"],
        d_ff=options["intermediate_size"], dropout=0.0,
        activation=named("hidden_act", options["hidden_act"], ACTIVATIONS),
        norm_placement="pre", norm="rms", norm_eps=options["rms_norm_eps"], positions="rotary",
        position_layout="halves", rotary_base=base, rotary_scaling=scaling,
        max_length=options["max_position_embeddings"], scale_embedding=False,
        tied_output=options["tie_word_embeddings"], pad_id=None,
        head=family.has_head(options), **more,
    )  # fmt: skip


def read_rotary(
    options: Options, scalings: Mapping[str, type] = SCALINGS
) -> tuple[float, Scaling | None]:
    """Base and scaling, from rope_parameters or from the older rope_scaling and rope_theta."""
    name = "rope_scaling" if options["rope_scaling"] else "rope_parameters"
    given = dict(options[name] or {})
    older = given.pop("type", "default")
    kind = given.pop("rope_type", older)
    base = given.pop("rope_theta", None) or options["rope_theta"] or 10000.0
    if kind not in ("default", *scalings):
        wanted = 'rope_type "default", "linear", "llama3" or "yarn"'
        raise option_error(name, options[name], wanted)
    known = {NAMES.get(n, n): n for n in fields_of(scalings[kind])} if kind in scalings else {}
    if NAMES["original_length"] in known:
        given.setdefault(NAMES["original_length"], options["max_position_embeddings"])
    if kind == "yarn":
        given.pop("finetuned", None)  # in the first models' files; it changes no number
        given = {n: value for n, value in given.items() if value is not None}
    needed = {n for n, ours in known.items() if is_needed(scalings[kind], ours)}
    if not needed <= given.keys() <= known.keys():
        wanted = f"{', '.join(known) or 'nothing more'} with rope_type {kind!r}"
        raise option_error(name, options[name], wanted)
    if kind not in scalings:
        return base, None
    return base, scalings[kind](**{known[n]: value for n, value in given.items()})


def fields_of(scaling: type) -> list[str]:
    """The names of a scaling's fields."""
    return [each.name for each in fields(scaling)]


def is_needed(scaling: type, name: str) -> bool:
    """Whether a field has no default."""
    return next(each.default is MISSING for each in fields(scaling) if each.name == name)


def write(config: LanguageModelConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    biases = {"mlp_bias": config.bias, "attention_bias": config.attention_bias}
    return write_shared(config, FAMILY) | biases


def write_shared(config: LanguageModelConfig, family: Family) -> dict[str, Any]:
    """What Llama, Mistral and Qwen3 have in common."""
    return family.architecture(config) | {
        "vocab_size": config.vocab_size, "hidden_size": config.d_model,
        "num_attention_heads": config.num_heads, "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.d_head, "num_hidden_layers": config.num_layers,
        "intermediate_size": config.d_ff, "hidden_act": "silu", "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_length or 2048,
        "rope_parameters": write_rotary(config), "tie_word_embeddings": config.tied_output,
    }  # fmt: skip


def write_rotary(
    config: LanguageModelConfig, scalings: Mapping[str, type] = SCALINGS
) -> dict[str, Any]:
    """rope_parameters."""
    scaling = config.rotary_scaling
    kind = next((kind for kind, each in scalings.items() if type(scaling) is each), "default")
    options = {} if scaling is None else vars(scaling)
    named = {NAMES.get(name, name): value for name, value in options.items()}
    return {"rope_type": kind, "rope_theta": config.rotary_base} | named


LAYER = {
    "residuals.0.norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "residuals.1.norm": "post_attention_layernorm",
    "feed_forward.gate_proj": "mlp.gate_proj",
    "feed_forward.up_proj": "mlp.up_proj",
    "feed_forward.down_proj": "mlp.down_proj",
}
FAMILY = Family(
    model_type="llama",
    architectures=("LlamaForCausalLM", "LlamaModel"),
    headless="LlamaModel",
    defaults={
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": None,
        "head_dim": None, "hidden_act": "silu", "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "attention_bias": False,
        "mlp_bias": False, "attention_dropout": 0.0, **ROTARY,
    },
    read=read,
    write=write,
    dropout={"attention_dropout": "attention"},
    modules={"embedding.table": "model.embed_tokens", "norm": "model.norm", "output": "lm_head"},
    stacks=(Stack("layers", "model.layers", LAYER),),
    base="model.",
    ignored=frozenset({"pretraining_tp"}),  # how the products were split in training
    leftovers=r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
    frozen_padding=("embedding.table",),
)  # fmt: skip
