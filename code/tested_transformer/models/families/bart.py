"""BART: the Transformer with learned positions, normalized embeddings and GELU; norms after each sublayer.

Its two stacks may have different numbers of layers, and nothing else that differs.

Source: Lewis et al. 2020; transformers' BartForConditionalGeneration and BartModel.
"""

from __future__ import annotations

from typing import Any

from ..family import Family, Options, Stack, name_of, named, option_error
from ..transformer import Transformer, TransformerConfig

ACTIVATIONS = {
    "gelu": "gelu", "relu": "relu", "swish": "silu", "silu": "silu", "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}  # fmt: skip
LEARNED = {"positions": "learned", "position_offset": 2, "embedding_norm": True}
BOTH = {"d_ff": "ffn_dim", "num_heads": "attention_heads"}


def read(options: Options) -> TransformerConfig:
    """Their options in our words."""
    return read_shared(options, FAMILY, **LEARNED)


def read_shared(options: Options, family: Family, **more: Any) -> TransformerConfig:
    """What BART, mBART and Marian have in common."""
    activation = named("activation_function", options["activation_function"], ACTIVATIONS)
    more = {"tied_output": options["tie_word_embeddings"], "norm_placement": "post"} | more
    return TransformerConfig(
        options["vocab_size"], d_model=options["d_model"], **{n: same(options, n) for n in BOTH},
        num_encoder_layers=options["encoder_layers"], num_decoder_layers=options["decoder_layers"],
        dropout=0.0, activation=activation, max_length=options["max_position_embeddings"],
        scale_embedding=options["scale_embedding"], pad_id=None, logit_bias=True,
        head=family.has_head(options), **more,
    )  # fmt: skip


def same(options: Options, ours: str) -> int:
    """A size that encoder and decoder share. Raises: ValueError if they do not."""
    of_encoder, of_decoder = (f"{stack}_{BOTH[ours]}" for stack in ("encoder", "decoder"))
    if options[of_encoder] != options[of_decoder]:
        wanted = f"{of_encoder} = {options[of_encoder]!r}: this package has one size for both"
        raise option_error(of_decoder, options[of_decoder], wanted)
    return options[of_encoder]


def write(config: TransformerConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    return write_shared(config, FAMILY)


def write_shared(config: TransformerConfig, family: Family) -> dict[str, Any]:
    """What BART, mBART and Marian have in common."""
    sizes = {f"{s}_{theirs}": getattr(config, ours)
             for ours, theirs in BOTH.items() for s in ("encoder", "decoder")}  # fmt: skip
    return sizes | family.architecture(config) | {
        "is_encoder_decoder": True, "vocab_size": config.source_vocab, "d_model": config.d_model,
        "encoder_layers": config.num_encoder_layers, "decoder_layers": config.num_decoder_layers,
        "activation_function": name_of(config.activation, ACTIVATIONS),
        "max_position_embeddings": config.max_length or 1024,
        "scale_embedding": config.scale_embedding, "tie_word_embeddings": config.tied_output,
    }  # fmt: skip


def attention(ours: str, theirs: str) -> dict[str, str]:
    """The four linear layers of one attention."""
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
    return {f"{ours}.{mine}": f"{theirs}.{yours}" for mine, yours in names.items()}


ENCODER = {
    **attention("attention", "self_attn"),
    "residuals.0.norm": "self_attn_layer_norm",
    "feed_forward.up_proj": "fc1",
    "feed_forward.down_proj": "fc2",
    "residuals.1.norm": "final_layer_norm",
}
DECODER = {
    **attention("cross_attention", "encoder_attn"),
    **ENCODER,
    "residuals.1.norm": "encoder_attn_layer_norm",
    "residuals.2.norm": "final_layer_norm",
}
MODULES = {
    "source_embedding.table": "model.shared",
    "target_embedding.table": "model.decoder.embed_tokens",
    "source_embedding.positions": "model.encoder.embed_positions",
    "source_embedding.norm": "model.encoder.layernorm_embedding",
    "target_embedding.positions": "model.decoder.embed_positions",
    "target_embedding.norm": "model.decoder.layernorm_embedding",
    "encoder.norm": "model.encoder.layer_norm",
    "decoder.norm": "model.decoder.layer_norm",
    "output": "lm_head",
    "logit_bias": "final_logits_bias",
}
FAMILY = Family(
    model_type="bart",
    architectures=("BartForConditionalGeneration", "BartModel"),
    headless="BartModel",
    config=TransformerConfig,
    build=Transformer,
    defaults={
        "vocab_size": 50265, "d_model": 1024, "encoder_layers": 12, "decoder_layers": 12,
        "encoder_attention_heads": 16, "decoder_attention_heads": 16, "encoder_ffn_dim": 4096,
        "decoder_ffn_dim": 4096, "activation_function": "gelu", "max_position_embeddings": 1024,
        "scale_embedding": False, "tie_word_embeddings": True, "dropout": 0.1,
    },
    read=read,
    write=write,
    dropout={
        "dropout": "embedding residual", "attention_dropout": "attention",
        "activation_dropout": "feed_forward",
    },
    modules=MODULES,
    stacks=(
        Stack("encoder.layers", "model.encoder.layers", ENCODER),
        Stack("decoder.layers", "model.decoder.layers", DECODER),
    ),
    base="model.",
    fixed={  # whole layers dropped in training; and what once told BART, mBART and Marian apart
        "is_encoder_decoder": (True,), "tie_word_embeddings": (True,),
        "encoder_layerdrop": (0.0,), "decoder_layerdrop": (0.0,), "normalize_before": (False,),
        "add_final_layer_norm": (False,), "normalize_embedding": (True,),
        "static_position_embeddings": (False,), "extra_pos_embeddings": (2,),
        "do_blenderbot_90_layernorm": (False,),
    },
    ignored=frozenset(  # the head for other tasks, names of encoder_layers and of options of generation
        "init_std classifier_dropout classif_dropout num_hidden_layers add_bias_logits output_past "
        "force_bos_token_to_be_generated gradient_checkpointing _num_labels".split()
    ),
    aliases={"model.encoder.embed_tokens.weight": "model.shared.weight"},
    may_be_missing=frozenset({"final_logits_bias"}),
    leftovers=r"(model\.)?(en|de)coder\.version",
    frozen_padding=("source_embedding.table", "target_embedding.table"),
)  # fmt: skip
