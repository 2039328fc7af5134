"""XLNet: two streams, distances in every layer, matrices stored by head; the output layer is the embedding matrix.

The memory (`mems`) of their class has no place here: a call without it gives the same numbers.

Source: Yang et al. 2019; transformers' XLNetLMHeadModel and XLNetModel.
"""

from __future__ import annotations

from typing import Any

from ..family import Family, Options, Stack, name_of, named, option_error
from ..xlnet import XLNet, XLNetConfig
from . import gpt2

ACTIVATIONS = {"gelu": "gelu"} | gpt2.ACTIVATIONS


def read(options: Options) -> XLNetConfig:
    """Their options in our words."""
    width = options["d_model"] // options["n_head"]
    if options["d_head"] not in (None, width):
        raise option_error("d_head", options["d_head"], f"d_model / n_head = {width}")
    return XLNetConfig(
        options["vocab_size"], d_model=options["d_model"], num_heads=options["n_head"],
        num_layers=options["n_layer"], d_ff=options["d_inner"],
        activation=named("ff_activation", options["ff_activation"], ACTIVATIONS),
        norm_eps=options["layer_norm_eps"], dropout=options["dropout"],
        head=FAMILY.has_head(options),
    )  # fmt: skip


def write(config: XLNetConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    return FAMILY.architecture(config) | {
        "vocab_size": config.vocab_size, "d_model": config.d_model, "n_head": config.num_heads,
        "n_layer": config.num_layers, "d_inner": config.d_ff or 4 * config.d_model,
        "d_head": config.d_model // config.num_heads, "ff_activation": name_of(config.activation, ACTIVATIONS),
        "layer_norm_eps": config.norm_eps, "dropout": config.dropout,
    }  # fmt: skip


FAMILY = Family(
    model_type="xlnet",
    architectures=("XLNetLMHeadModel", "XLNetModel"),
    headless="XLNetModel",
    config=XLNetConfig,
    build=XLNet,
    defaults={
        "vocab_size": 32000, "d_model": 1024, "n_layer": 24, "n_head": 16, "d_inner": 4096,
        "d_head": None, "ff_activation": "gelu", "layer_norm_eps": 1e-12, "dropout": 0.1,
    },
    read=read,
    write=write,
    dropout={"dropout": "embedding attention residual feed_forward"},
    modules={
        "embedding": "transformer.word_embedding", "mask_embedding": "transformer.mask_emb",
        "output": "lm_loss",
    },
    stacks=(
        Stack("layers", "transformer.layer", {
            "attention.query": "rel_attn.q",
            "attention.key": "rel_attn.k",
            "attention.value": "rel_attn.v",
            "attention.output": "rel_attn.o",
            "attention.position": "rel_attn.r",
            "attention.content_bias": "rel_attn.r_w_bias",
            "attention.position_bias": "rel_attn.r_r_bias",
            "attention.segment_bias": "rel_attn.r_s_bias",
            "attention.segment": "rel_attn.seg_embed",
            "residuals.0.norm": "rel_attn.layer_norm",
            "feed_forward.up_proj": "ff.layer_1",
            "feed_forward.down_proj": "ff.layer_2",
            "residuals.1.norm": "ff.layer_norm",
        }),
    ),
    base="transformer.",
    fixed={
        "attn_type": ("bi",), "bi_data": (False,), "clamp_len": (-1,), "reuse_len": (None,),
        "same_length": (False,), "untie_r": (True,), "tie_word_embeddings": (True,),
    },
    ignored=frozenset(  # of a memory that is not given, and of heads that are not here
        "mem_len use_mems_eval use_mems_train summary_type summary_use_proj summary_activation "
        "summary_last_dropout start_n_top end_n_top".split()
    ),
)  # fmt: skip
