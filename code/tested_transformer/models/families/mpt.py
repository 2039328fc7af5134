"""MPT: ALiBi, GELU, no biases; query, key and value in one matrix, one after the other.

transformers reads some options of MPT and does not act on them: each is refused here unless it has the one value for
which that is right. In particular its ALiBi has alibi_bias_max = 8 whatever the configuration says.

Source: MosaicML 2023; transformers' MptForCausalLM and MptModel.
"""

from __future__ import annotations

from typing import Any

from ..family import IGNORED, Family, Options, Stack, option_error
from ..mpt import Mpt, MptConfig

ATTENTION = {  # what attn_config may say besides clip_qkv and attn_pdrop
    "attn_type": "multihead_attention", "softmax_scale": None, "prefix_lm": False, "qk_ln": False,
    "attn_uses_sequence_id": False, "alibi": True, "alibi_bias_max": 8,
}  # fmt: skip
IDLE = IGNORED | {"attn_impl", "architectures", "is_encoder_decoder"}  # these change no number


def read(options: Options) -> MptConfig:
    """Their options in our words."""
    return MptConfig(
        options["vocab_size"], d_model=options["d_model"], num_heads=options["n_heads"],
        num_layers=options["n_layers"], dropout=0.0, norm_eps=options["layer_norm_epsilon"],
        max_length=options["max_seq_len"], tied_output=options["tie_word_embeddings"],
        head=FAMILY.has_head(options), **read_attention(options["attn_config"] or {}),
    )  # fmt: skip


def read_attention(given: Any) -> dict[str, Any]:
    """What attn_config says. Raises: ValueError for what is unknown or not supported."""
    if not isinstance(given, dict):
        raise option_error("attn_config", given, "an object of options")
    for name, value in given.items():
        if name in ATTENTION and value != ATTENTION[name]:
            raise option_error(f"attn_config, {name}", value, repr(ATTENTION[name]))
        if name == "attn_pdrop" and value != 0:
            raise option_error(f"attn_config, {name}", value, "0")
        if name not in {*ATTENTION, *IDLE, "clip_qkv", "attn_pdrop"}:
            raise option_error(f"attn_config, {name}", value, "no such option")
    return {"clip_qkv": given.get("clip_qkv") or None}  # 0 clamps nothing there


def write(config: MptConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    return FAMILY.architecture(config) | {
        "vocab_size": config.vocab_size, "d_model": config.d_model, "n_heads": config.num_heads,
        "n_layers": config.num_layers, "layer_norm_epsilon": config.norm_eps,
        "max_seq_len": config.max_length or 2048, "tie_word_embeddings": config.tied_output,
        "attn_config": ATTENTION | {"clip_qkv": config.clip_qkv},
    }  # fmt: skip


LAYER = {
    "residuals.0.norm": "norm_1",
    "attention.query attention.key attention.value": "attn.Wqkv",
    "attention.output": "attn.out_proj",
    "residuals.1.norm": "norm_2",
    "feed_forward.up_proj": "ffn.up_proj",
    "feed_forward.down_proj": "ffn.down_proj",
}
FAMILY = Family(
    model_type="mpt",
    architectures=("MptForCausalLM", "MptModel", "MPTForCausalLM"),  # the last: MosaicML's own files
    headless="MptModel",
    config=MptConfig,
    build=Mpt,
    defaults={
        "vocab_size": 50368, "d_model": 2048, "n_heads": 16, "n_layers": 24, "max_seq_len": 2048,
        "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "attn_config": None,
    },
    read=read,
    write=write,
    dropout={},
    modules={
        "embedding.table": "transformer.wte", "norm": "transformer.norm_f", "output": "lm_head",
    },
    stacks=(Stack("layers", "transformer.blocks", LAYER),),
    base="transformer.",
    fixed={
        "expansion_ratio": (4,), "no_bias": (True,), "logit_scale": (None,),
        "embedding_fraction": (1.0,), "emb_pdrop": (0.0,), "resid_pdrop": (0.0,),
        "norm_type": ("low_precision_layernorm", "layernorm"),
    },
    ignored=frozenset(  # ALiBi replaces what learned_pos_emb says; the rest is of its own code
        "learned_pos_emb init_device init_config verbose tokenizer_name auto_map".split()
    ),
)  # fmt: skip
