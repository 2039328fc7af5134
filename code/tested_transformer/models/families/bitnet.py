"""BitNet b1.58: Llama with a squared ReLU as the gate, and a norm before each last linear layer.

Its layers are plain linear layers: the model as it is trained. A config.json with a `quantization_config` stands
for layers that quantize, or for packed weights, and is refused.

Source: Ma et al. 2024; transformers' BitNetForCausalLM and BitNetModel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..bitnet import BitNet, BitNetConfig
from ..family import Options, Stack, named
from . import llama

ACTIVATIONS = {"relu2": "relu"}


def read(options: Options) -> BitNetConfig:
    """Their options in our words."""
    activation = named("hidden_act", options["hidden_act"], ACTIVATIONS)
    as_llama = {**options, "hidden_act": "silu", "head_dim": None}
    more = {"bias": False, "attention_bias": options["attention_bias"]}
    shared = vars(llama.read_shared(as_llama, FAMILY, **more))
    return BitNetConfig(**shared | {"activation": activation})


def write(config: BitNetConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    theirs = llama.write_shared(config, FAMILY)
    del theirs["head_dim"]
    return theirs | {"hidden_act": "relu2", "attention_bias": config.attention_bias}


NORMS = {
    "attention.sub_norm": "self_attn.attn_sub_norm",
    "feed_forward.sub_norm": "mlp.ffn_sub_norm",
}
OWN = {
    "vocab_size": 128256, "hidden_size": 2560, "intermediate_size": 6912, "num_hidden_layers": 30,
    "num_attention_heads": 20, "num_key_value_heads": 5, "hidden_act": "relu2",
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
}  # fmt: skip
LEFT_OUT = ("mlp_bias", "head_dim")
FAMILY = replace(
    llama.FAMILY,
    model_type="bitnet",
    architectures=("BitNetForCausalLM", "BitNetModel"),
    headless="BitNetModel",
    defaults={n: v for n, v in llama.FAMILY.defaults.items() if n not in LEFT_OUT} | OWN,
    fixed={"quantization_config": (None,)},
    read=read,
    write=write,
    config=BitNetConfig,
    build=BitNet,
    stacks=(Stack("layers", "model.layers", llama.LAYER | NORMS),),
    ignored=frozenset(),
)
