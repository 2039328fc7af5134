"""RWKV-4 as transformers stores it.

rescale_every divides the residual stream by powers of two in evaluation there, and the weights with it, so that it fits
into float16. The norms undo that but for their eps; it is left out here.

Source: Peng et al. 2023; transformers' RwkvForCausalLM and RwkvModel.
"""

from __future__ import annotations

from typing import Any

from ..family import Family, Options, Stack
from ..rwkv import Rwkv, RwkvConfig


def read(options: Options) -> RwkvConfig:
    """Their options in our words."""
    return RwkvConfig(
        vocab_size=options["vocab_size"], d_model=options["hidden_size"],
        num_layers=options["num_hidden_layers"], norm_eps=options["layer_norm_epsilon"],
        d_inner=options["attention_hidden_size"], d_ff=options["intermediate_size"],
        tied_output=options["tie_word_embeddings"], head=FAMILY.has_head(options),
    )  # fmt: skip


def write(config: RwkvConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    return FAMILY.architecture(config) | {
        "vocab_size": config.vocab_size, "hidden_size": config.d_model,
        "num_hidden_layers": config.num_layers, "layer_norm_epsilon": config.norm_eps,
        "attention_hidden_size": config.d_inner, "intermediate_size": config.d_ff,
        "tie_word_embeddings": config.tied_output,
    }  # fmt: skip


LAYER = {
    "norms.0": "ln1",
    "norms.1": "ln2",
    "time_mix.log_rate": "attention.time_decay",
    "time_mix.bonus": "attention.time_first",
    "time_mix.mix_key": "attention.time_mix_key",
    "time_mix.mix_value": "attention.time_mix_value",
    "time_mix.mix_receptance": "attention.time_mix_receptance",
    "time_mix.key": "attention.key",
    "time_mix.value": "attention.value",
    "time_mix.receptance": "attention.receptance",
    "time_mix.output": "attention.output",
    "channel_mix.mix_key": "feed_forward.time_mix_key",
    "channel_mix.mix_receptance": "feed_forward.time_mix_receptance",
    "channel_mix.key": "feed_forward.key",
    "channel_mix.value": "feed_forward.value",
    "channel_mix.receptance": "feed_forward.receptance",
}
FAMILY = Family(
    model_type="rwkv",
    architectures=("RwkvForCausalLM", "RwkvModel"),
    headless="RwkvModel",
    config=RwkvConfig,
    build=Rwkv,
    defaults={
        "vocab_size": 50277, "hidden_size": 4096, "num_hidden_layers": 32,
        "attention_hidden_size": None, "intermediate_size": None, "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": False,
    },
    read=read,
    write=write,
    dropout={},
    modules={
        "embedding": "rwkv.embeddings", "embedding_norm": "rwkv.blocks.0.pre_ln",
        "norm": "rwkv.ln_out", "output": "head",
    },
    stacks=(Stack("layers", "rwkv.blocks", LAYER),),
    base="rwkv.",
    ignored=frozenset({"context_length", "max_position_embeddings", "rescale_every"}),
    float32=r".*\.time_(decay|first)",
)  # fmt: skip
