"""Falcon: multi-query attention, or grouped-query attention in the newer ones, beside the feed-forward network.

Query, key and value are stored in one matrix, KV head by KV head. Dropout other than 0 is refused: there it acts
in other places than here.

Source: Almazrouei et al. 2023; transformers' FalconForCausalLM and FalconModel.
"""

from __future__ import annotations

from typing import Any

from ..falcon import Falcon, FalconConfig
from ..family import Family, Options, Stack, name_of, named, option_error
from . import gpt2, llama


def read(options: Options) -> FalconConfig:
    """Their options in our words."""
    base, scaling = llama.read_rotary(options)
    hidden, heads = options["hidden_size"], options["num_attention_heads"]
    return FalconConfig(
        options["vocab_size"], d_model=hidden, num_heads=heads,
        num_kv_heads=read_kv_heads(options), num_layers=options["num_hidden_layers"],
        d_ff=options["ffn_hidden_size"], dropout=0.0,
        activation=named("activation", options["activation"], ACTIVATIONS),
        attention_bias=options["bias"], linear_bias=options["bias"],
        num_parallel_norms=read_parallel_norms(options), norm_placement="pre",
        norm_eps=options["layer_norm_epsilon"],
        positions="alibi" if options["alibi"] else "rotary", position_layout="halves",
        rotary_base=base, rotary_scaling=scaling, max_length=options["max_position_embeddings"],
        scale_embedding=False, tied_output=options["tie_word_embeddings"], pad_id=None,
        head=FAMILY.has_head(options),
    )  # fmt: skip


def read_kv_heads(options: Options) -> int:
    """How many keys and values there are: multi_query counts in the older architecture alone."""
    heads, given = options["num_attention_heads"], options["num_kv_heads"]
    given = heads if given is None else given
    if options["new_decoder_architecture"]:
        return given
    if options["multi_query"]:
        return 1
    if given != heads:
        wanted = f"{heads}, the number of heads, without multi_query and new_decoder_architecture"
        raise option_error("num_kv_heads", given, wanted)
    return heads


def read_parallel_norms(options: Options) -> int:
    """0 for one after the other, 1 or 2 norms side by side."""
    newer, norms = options["new_decoder_architecture"], options["num_ln_in_parallel_attn"]
    if not options["parallel_attn"]:
        if newer:
            raise option_error("parallel_attn", False, "True with new_decoder_architecture")
        return 0
    norms = (2 if newer else 1) if norms is None else norms
    if norms != 1 and not (newer and norms == 2):
        wanted = "1, or 2 with new_decoder_architecture"
        raise option_error("num_ln_in_parallel_attn", norms, wanted)
    return norms


def write(config: FalconConfig) -> dict[str, Any]:
    """Our configuration in their words: the newer architecture where the older one cannot say it."""
    shared = config.num_kv_heads in (1, config.num_heads)
    newer = config.num_parallel_norms == 2 or not shared
    return FAMILY.architecture(config) | {
        "vocab_size": config.vocab_size, "hidden_size": config.d_model,
        "num_attention_heads": config.num_heads, "num_kv_heads": config.num_kv_heads,
        "num_hidden_layers": config.num_layers, "ffn_hidden_size": config.d_ff,
        "activation": name_of(config.activation, ACTIVATIONS), "bias": config.linear_bias,
        "new_decoder_architecture": newer, "multi_query": config.num_kv_heads == 1,
        "parallel_attn": config.num_parallel_norms > 0,
        "num_ln_in_parallel_attn": config.num_parallel_norms or None,
        "alibi": config.positions == "alibi", "layer_norm_epsilon": config.norm_eps,
        "rope_parameters": llama.write_rotary(config),
        "max_position_embeddings": config.max_length or 2048,
        "tie_word_embeddings": config.tied_output,
    }  # fmt: skip


ACTIVATIONS = {"gelu": "gelu"} | gpt2.ACTIVATIONS
LAYER = {
    "shared_norm": "input_layernorm",
    "attention_norm": "ln_attn",
    "feed_forward_norm": "ln_mlp",
    "residuals.0.norm": "input_layernorm",
    "residuals.1.norm": "post_attention_layernorm",
    "attention.query attention.key attention.value": "self_attention.query_key_value",
    "attention.output": "self_attention.dense",
    "feed_forward.up_proj": "mlp.dense_h_to_4h",
    "feed_forward.down_proj": "mlp.dense_4h_to_h",
}
FAMILY = Family(
    model_type="falcon",
    architectures=("FalconForCausalLM", "FalconModel"),
    headless="FalconModel",
    config=FalconConfig,
    build=Falcon,
    defaults={
        "vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32,
        "num_attention_heads": 71, "num_kv_heads": None, "num_ln_in_parallel_attn": None,
        "layer_norm_epsilon": 1e-5, "alibi": False, "new_decoder_architecture": False,
        "multi_query": True, "parallel_attn": True, "bias": False, "ffn_hidden_size": None,
        "activation": "gelu", "max_position_embeddings": 2048, "tie_word_embeddings": True,
        **llama.ROTARY,
    },
    read=read,
    write=write,
    dropout={},
    modules={
        "embedding.table": "transformer.word_embeddings", "norm": "transformer.ln_f",
        "output": "lm_head",
    },
    stacks=(Stack("layers", "transformer.h", LAYER),),
    base="transformer.",
    fixed={
        "hidden_dropout": (0.0,), "attention_dropout": (0.0,),
        "apply_residual_connection_post_layernorm": (False,),
    },
    ignored=frozenset({"auto_map"}),
    by_group=True,
    leftovers=r"(transformer\.)?(h\.\d+\.self_attention\.(maybe_)?)?rotary(_emb)?\.inv_freq",
)  # fmt: skip
