"""ViT: an encoder with pre-norm over patches, with the head for classification or without one.

Source: Dosovitskiy et al. 2021; transformers' ViTForImageClassification and ViTModel.
"""

from __future__ import annotations

from typing import Any

from ..family import Family, Options, Stack, name_of, named, option_error
from ..vit import VisionTransformer, VisionTransformerConfig
from .gpt2 import ACTIVATIONS


def read(options: Options) -> VisionTransformerConfig:
    """Their options in our words."""
    headless, labels = options["architectures"] == FAMILY.headless, options["id2label"]
    if options["pooler_output_size"] not in (None, options["hidden_size"]):
        wanted = f"hidden_size = {options['hidden_size']}"
        raise option_error("pooler_output_size", options["pooler_output_size"], wanted)
    return VisionTransformerConfig(
        pair("image_size", options), pair("patch_size", options),
        num_channels=options["num_channels"], d_model=options["hidden_size"],
        num_heads=options["num_attention_heads"], num_layers=options["num_hidden_layers"],
        d_ff=options["intermediate_size"], norm_eps=options["layer_norm_eps"],
        activation=named("hidden_act", options["hidden_act"], ACTIVATIONS),
        qkv_bias=options["qkv_bias"], pooler=headless,
        num_labels=None if headless else 2 if labels is None else len(labels),
    )  # fmt: skip


def pair(name: str, options: Options) -> tuple[int, int]:
    """Height and width, where one number stands for both."""
    size = options[name]
    pair = (size, size) if isinstance(size, int) else size
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise option_error(name, size, "a number, or height and width")
    return tuple(pair)


def write(config: VisionTransformerConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    sizes = {"image_size": config.image_size, "patch_size": config.patch_size}
    names = [f"LABEL_{number}" for number in range(config.num_labels or 2)]
    return {name: one_number(*size) for name, size in sizes.items()} | {
        "architectures": [FAMILY.headless if config.num_labels is None else FAMILY.architectures[0]],
        "num_channels": config.num_channels, "hidden_size": config.d_model,
        "num_attention_heads": config.num_heads, "num_hidden_layers": config.num_layers,
        "intermediate_size": config.d_ff, "layer_norm_eps": config.norm_eps,
        "hidden_act": name_of(config.activation, ACTIVATIONS), "qkv_bias": config.qkv_bias,
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }  # fmt: skip


def one_number(height: int, width: int) -> int | list[int]:
    """The way back of `pair`: their interpolation knows squares alone, and wants one number."""
    return height if height == width else [height, width]


FAMILY = Family(
    model_type="vit",
    architectures=("ViTForImageClassification", "ViTModel"),
    headless="ViTModel",
    config=VisionTransformerConfig,
    build=VisionTransformer,
    defaults={
        "image_size": 224, "patch_size": 16, "num_channels": 3, "hidden_size": 768,
        "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "hidden_act": "gelu", "layer_norm_eps": 1e-12, "qkv_bias": True, "id2label": None,
        "pooler_output_size": None,
    },
    read=read,
    write=write,
    dropout={
        "hidden_dropout_prob": "embedding residual", "attention_probs_dropout_prob": "attention",
    },
    modules={
        "embedding.cls_token": "vit.embeddings.cls_token",
        "embedding.positions": "vit.embeddings.position_embeddings",
        "embedding.projection": "vit.embeddings.patch_embeddings.projection",
        "norm": "vit.layernorm",
        "pooler.dense": "vit.pooler.dense",
        "output": "classifier",
    },
    stacks=(
        Stack("layers", "vit.encoder.layer", {
            "residuals.0.norm": "layernorm_before",
            "attention.query": "attention.attention.query",
            "attention.key": "attention.attention.key",
            "attention.value": "attention.attention.value",
            "attention.output": "attention.output.dense",
            "residuals.1.norm": "layernorm_after",
            "feed_forward.up_proj": "intermediate.dense",
            "feed_forward.down_proj": "output.dense",
        }),
    ),
    base="vit.",
    fixed={"pooler_act": ("tanh",)},
    ignored=frozenset({"encoder_stride"}),  # of the head for masked images
)  # fmt: skip
