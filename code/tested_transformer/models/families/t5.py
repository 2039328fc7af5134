"""T5 and Flan-T5: pre-norm by RMSNorm, no biases, scores not scaled, a bias for each bucket of distances.

The bias is stored in the first layer of each stack and used in all of them. An output layer that is not tied is known
by tie_word_embeddings or, in files of transformers 5, by scale_decoder_outputs. While training, transformers drops out
each stack's output as well.

Source: Raffel et al. 2020; Chung et al. 2022 (Flan-T5); transformers' T5ForConditionalGeneration and T5Model.
"""

from __future__ import annotations

from typing import Any

from ..family import Family, Options, Stack, name_of, named, option_error
from ..t5 import T5, T5Config

ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "silu": "silu", "swish": "silu",
}  # fmt: skip
GATED = {
    "gated-gelu": "gelu_tanh", "gated-gelu_new": "gelu_tanh", "gated-silu": "silu",
    "gated-relu": "relu",
}  # fmt: skip


def read(options: Options) -> T5Config:
    """Their options in our words."""
    kind, layers = options["feed_forward_proj"], options["num_layers"]
    decoder_layers = options["num_decoder_layers"]
    return T5Config(
        source_vocab=options["vocab_size"], d_model=options["d_model"], d_head=options["d_kv"],
        d_ff=options["d_ff"], num_heads=options["num_heads"], num_encoder_layers=layers,
        num_decoder_layers=layers if decoder_layers is None else decoder_layers, dropout=0.0,
        activation=named("feed_forward_proj", kind, ACTIVATIONS | GATED), gated=kind in GATED,
        num_buckets=options["relative_attention_num_buckets"],
        max_distance=options["relative_attention_max_distance"],
        norm_eps=options["layer_norm_epsilon"], tied_output=read_tied(options),
        head=FAMILY.has_head(options),
    )  # fmt: skip


def read_tied(options: Options) -> bool:
    """Whether the output layer is the embedding matrix, whose inputs are then scaled."""
    tied, scaled = options["tie_word_embeddings"], options["scale_decoder_outputs"]
    if scaled is None:
        return tied
    if scaled and not tied:
        wanted = "False, with tie_word_embeddings = False"
        raise option_error("scale_decoder_outputs", scaled, wanted)
    return scaled


def write(config: T5Config) -> dict[str, Any]:
    """Our configuration in their words."""
    known = GATED if config.gated else ACTIVATIONS
    return FAMILY.architecture(config) | {
        "is_encoder_decoder": True, "vocab_size": config.source_vocab, "d_model": config.d_model,
        "d_kv": config.d_head, "d_ff": config.d_ff, "num_heads": config.num_heads,
        "num_layers": config.num_encoder_layers, "num_decoder_layers": config.num_decoder_layers,
        "feed_forward_proj": name_of(config.activation, known),
        "relative_attention_num_buckets": config.num_buckets,
        "relative_attention_max_distance": config.max_distance,
        "layer_norm_epsilon": config.norm_eps, "tie_word_embeddings": config.tied_output,
    }  # fmt: skip


def attention(ours: str, theirs: str) -> dict[str, str]:
    """The four linear layers of one attention."""
    names = {"query": "q", "key": "k", "value": "v", "output": "o"}
    return {f"{ours}.{mine}": f"{theirs}.{yours}" for mine, yours in names.items()}


def stacks(config: T5Config) -> tuple[Stack, Stack]:
    """Both stacks, whose layers are lists of sublayers; the gate takes the first of two names."""

    def feed_forward(sublayer: int) -> dict[str, str]:
        place, first = f"layer.{sublayer}.DenseReluDense", "wi_1" if config.gated else "wi"
        layers = {"gate_proj": "wi_0", "up_proj": first, "down_proj": "wo"}
        return {f"feed_forward.{mine}": f"{place}.{yours}" for mine, yours in layers.items()}

    own = attention("attention", "layer.0.SelfAttention") | {
        "attention.positions.table": "layer.0.SelfAttention.relative_attention_bias.weight",
        "residuals.0.norm": "layer.0.layer_norm",
        "residuals.1.norm": "layer.1.layer_norm",
    }
    cross = attention("cross_attention", "layer.1.EncDecAttention")
    last = {"residuals.2.norm": "layer.2.layer_norm"}
    return (
        Stack("encoder.layers", "encoder.block", own | feed_forward(1)),
        Stack("decoder.layers", "decoder.block", own | cross | last | feed_forward(2)),
    )


FAMILY = Family(
    model_type="t5",
    architectures=("T5ForConditionalGeneration", "T5Model", "T5WithLMHeadModel"),  # once its name
    headless="T5Model",
    config=T5Config,
    build=T5,
    defaults={
        "vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6,
        "num_decoder_layers": None, "num_heads": 8, "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128, "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": "relu", "tie_word_embeddings": True, "scale_decoder_outputs": None,
        "dropout_rate": 0.1,
    },
    read=read,
    write=write,
    dropout={"dropout_rate": "embedding attention residual feed_forward"},
    modules={
        "source_embedding.table": "shared", "target_embedding.table": "decoder.embed_tokens",
        "encoder.norm": "encoder.final_layer_norm", "decoder.norm": "decoder.final_layer_norm",
        "output": "lm_head",
    },
    stacks=stacks,
    base="",
    fixed={"is_encoder_decoder": (True,)},
    ignored=frozenset(  # how it was initialized; what feed_forward_proj says; a head for other tasks
        "initializer_factor dense_act_fn is_gated_act classifier_dropout n_positions output_past "
        "gradient_checkpointing".split()
    ),
    aliases={"encoder.embed_tokens.weight": "shared.weight"},
    leftovers=r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
)  # fmt: skip
