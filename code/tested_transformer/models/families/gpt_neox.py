"""GPT-NeoX, the model of Pythia: parallel layers with two norms; a part of each head rotates, in halves.

Query, key and value are stored in one matrix, head by head. hidden_dropout other than 0 is refused: a parallel
layer has it twice there, once here.

Source: Black et al. 2022 (GPT-NeoX-20B); Biderman et al. 2023 (Pythia); transformers' GPTNeoXForCausalLM.
"""

from __future__ import annotations

import math
from typing import Any

from ..family import Family, Options, Stack, name_of, named
from ..parallel import ParallelLanguageModel, ParallelLanguageModelConfig
from . import gpt2, llama

ACTIVATIONS = gpt2.ACTIVATIONS | {"gelu_fast": "gelu_tanh"}


def read(options: Options) -> ParallelLanguageModelConfig:
    """Their options in our words."""
    rotary, hidden, heads = (
        read_rotary(options),
        options["hidden_size"],
        options["num_attention_heads"],
    )
    return ParallelLanguageModelConfig(
        options["vocab_size"], d_model=hidden, num_heads=heads,
        num_layers=options["num_hidden_layers"], d_ff=options["intermediate_size"], dropout=0.0,
        activation=named("hidden_act", options["hidden_act"], ACTIVATIONS),
        num_parallel_norms=2 if options["use_parallel_residual"] else 0, norm_placement="pre",
        norm_eps=options["layer_norm_eps"], attention_bias=options["attention_bias"],
        positions="rotary", position_layout="halves", **rotary,
        max_length=options["max_position_embeddings"], scale_embedding=False,
        tied_output=options["tie_word_embeddings"], pad_id=None, head=FAMILY.has_head(options),
    )  # fmt: skip


def read_rotary(options: Options) -> dict[str, Any]:
    """Base, scaling, and how many features of a head rotate: a share of them, rounded down."""
    name = "rope_scaling" if options["rope_scaling"] else "rope_parameters"
    given = dict(options[name] or {})
    share = given.pop("partial_rotary_factor", options["rotary_pct"])
    base, scaling = llama.read_rotary(
        {**options, name: given, "rope_theta": options["rotary_emb_base"]}
    )
    d_head = options["hidden_size"] // options["num_attention_heads"]
    return {
        "rotary_base": base, "rotary_scaling": scaling,
        "rotary_dim": None if share == 1 else int(d_head * share),
    }  # fmt: skip


def write(config: ParallelLanguageModelConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    share = rotary_share(config.rotary_dim, config.d_head)
    return FAMILY.architecture(config) | {
        "vocab_size": config.vocab_size, "hidden_size": config.d_model,
        "num_attention_heads": config.num_heads, "num_hidden_layers": config.num_layers,
        "intermediate_size": config.d_ff, "hidden_act": name_of(config.activation, ACTIVATIONS),
        "use_parallel_residual": config.num_parallel_norms == 2,
        "layer_norm_eps": config.norm_eps, "attention_bias": config.attention_bias,
        "rope_parameters": llama.write_rotary(config) | {"partial_rotary_factor": share},
        "max_position_embeddings": config.max_length or 2048,
        "tie_word_embeddings": config.tied_output,
    }  # fmt: skip


def rotary_share(rotary_dim: int | None, d_head: int) -> float:
    """The share of a head's features that rotate, of which `read_rotary` makes rotary_dim again."""
    if rotary_dim is None:
        return 1.0
    share = rotary_dim / d_head
    return share if int(d_head * share) == rotary_dim else math.nextafter(share, 1.0)


LAYER = {
    "attention_norm": "input_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
    "residuals.0.norm": "input_layernorm",
    "residuals.1.norm": "post_attention_layernorm",
    "attention.query attention.key attention.value": "attention.query_key_value",
    "attention.output": "attention.dense",
    "feed_forward.up_proj": "mlp.dense_h_to_4h",
    "feed_forward.down_proj": "mlp.dense_4h_to_h",
}
FAMILY = Family(
    model_type="gpt_neox",
    architectures=("GPTNeoXForCausalLM", "GPTNeoXModel"),
    headless="GPTNeoXModel",
    config=ParallelLanguageModelConfig,
    build=ParallelLanguageModel,
    defaults={
        "vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44,
        "num_attention_heads": 64, "intermediate_size": 24576, "hidden_act": "gelu",
        "max_position_embeddings": 2048, "layer_norm_eps": 1e-5, "tie_word_embeddings": False,
        "use_parallel_residual": True, "attention_bias": True, "rope_parameters": None,
        "rope_scaling": None, "rotary_pct": 0.25, "rotary_emb_base": 10000,
    },
    read=read,
    write=write,
    dropout={"attention_dropout": "attention"},
    modules={
        "embedding.table": "gpt_neox.embed_in", "norm": "gpt_neox.final_layer_norm",
        "output": "embed_out",
    },
    stacks=(Stack("layers", "gpt_neox.layers", LAYER),),
    base="gpt_neox.",
    fixed={  # the last two are older names of dropout
        "hidden_dropout": (0.0,), "hidden_dropout_prob": (0.0,),
        "attention_probs_dropout_prob": (0.0,),
    },
    ignored=frozenset({"classifier_dropout", "gradient_checkpointing"}),
    by_group=True,
    renamed={r"^lm_head\.": "embed_out."},
    leftovers=r"(gpt_neox\.)?layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
)  # fmt: skip
