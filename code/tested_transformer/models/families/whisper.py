"""Whisper: pre-norm, GELU, keys without biases, sinusoids for sound and learned positions for text.

Its two stacks may have different numbers of layers, and nothing else that differs.

Source: Radford et al. 2022; transformers' WhisperForConditionalGeneration and WhisperModel.
"""

from __future__ import annotations

from typing import Any

from ..family import Family, Options, Stack, name_of, named
from ..whisper import Whisper, WhisperConfig
from .bart import ACTIVATIONS, BOTH, DECODER, ENCODER, same


def read(options: Options) -> WhisperConfig:
    """Their options in our words."""
    return WhisperConfig(
        options["vocab_size"], num_mels=options["num_mel_bins"], d_model=options["d_model"],
        num_positions=options["max_source_positions"], max_length=options["max_target_positions"],
        num_encoder_layers=options["encoder_layers"], num_decoder_layers=options["decoder_layers"],
        **{name: same(options, name) for name in BOTH},
        activation=named("activation_function", options["activation_function"], ACTIVATIONS),
        head=options["architectures"] != FAMILY.headless,
    )  # fmt: skip


def write(config: WhisperConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    sizes = {f"{stack}_{theirs}": getattr(config, ours)
             for ours, theirs in BOTH.items() for stack in ("encoder", "decoder")}  # fmt: skip
    return sizes | {
        "architectures": [FAMILY.architectures[0] if config.head else FAMILY.headless],
        "is_encoder_decoder": True, "vocab_size": config.vocab_size,
        "num_mel_bins": config.num_mels, "d_model": config.d_model,
        "max_source_positions": config.num_positions, "max_target_positions": config.max_length,
        "encoder_layers": config.num_encoder_layers, "decoder_layers": config.num_decoder_layers,
        "activation_function": name_of(config.activation, ACTIVATIONS),
        "begin_suppress_tokens": None,
    }  # fmt: skip


FAMILY = Family(
    model_type="whisper",
    architectures=("WhisperForConditionalGeneration", "WhisperModel"),
    headless="WhisperModel",
    config=WhisperConfig,
    build=Whisper,
    defaults={
        "vocab_size": 51865, "num_mel_bins": 80, "d_model": 384, "encoder_layers": 4,
        "decoder_layers": 4, "encoder_attention_heads": 6, "decoder_attention_heads": 6,
        "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536, "activation_function": "gelu",
        "max_source_positions": 1500, "max_target_positions": 448,
    },
    read=read,
    write=write,
    dropout={
        "dropout": "embedding residual", "attention_dropout": "attention",
        "activation_dropout": "feed_forward",
    },
    modules={
        "stem.first": "model.encoder.conv1",
        "stem.second": "model.encoder.conv2",
        "stem.positions": "model.encoder.embed_positions.weight",
        "encoder.norm": "model.encoder.layer_norm",
        "embedding.table": "model.decoder.embed_tokens",
        "embedding.positions": "model.decoder.embed_positions",
        "decoder.norm": "model.decoder.layer_norm",
        "output": "proj_out",
    },
    stacks=(
        Stack("encoder.layers", "model.encoder.layers", ENCODER),
        Stack("decoder.layers", "model.decoder.layers", DECODER),
    ),
    base="model.",
    fixed={  # whole layers dropped, and features masked, in training
        "is_encoder_decoder": (True,), "tie_word_embeddings": (True,),
        "encoder_layerdrop": (0.0,), "decoder_layerdrop": (0.0,), "apply_spec_augment": (False,),
    },
    ignored=frozenset(  # not used, names of encoder_layers, the head for other tasks, how to generate
        "scale_embedding init_std num_hidden_layers classifier_proj_size use_weighted_layer_sum "
        "mask_time_prob mask_time_length mask_time_min_masks mask_feature_prob mask_feature_length "
        "mask_feature_min_masks median_filter_width forced_decoder_ids".split()
    ),
    frozen_padding=("embedding.table",),
)  # fmt: skip
