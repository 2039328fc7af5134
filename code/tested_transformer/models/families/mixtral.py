"""Mixtral: Mistral whose every layer has a mixture of experts, two of eight by a normalized softmax.

Source: Jiang et al. 2024 (Mixtral); transformers' MixtralForCausalLM and MixtralModel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...layers.moe import ExpertsConfig
from ..family import Options, Stack
from ..language_model import LanguageModelConfig
from . import llama, mistral


def read(options: Options) -> LanguageModelConfig:
    """Their options in our words."""
    given = dict(options)
    given["rope_theta"] = options["rope_theta"] or 1000000.0
    experts = ExpertsConfig(
        num_experts=options["num_local_experts"], num_chosen=options["num_experts_per_tok"],
        d_expert=options["intermediate_size"], normalize=True,
    )  # fmt: skip
    return llama.read_shared(
        given, FAMILY, bias=False, window=options["sliding_window"], experts=experts
    )


def write(config: LanguageModelConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    written = mistral.write(config) | FAMILY.architecture(config)
    experts = config.experts
    if experts is None:  # another family's model
        return written
    return written | {
        "intermediate_size": experts.d_expert, "num_local_experts": experts.num_experts,
        "num_experts_per_tok": experts.num_chosen,
    }  # fmt: skip


ATTENTION = {ours: theirs for ours, theirs in llama.LAYER.items() if "feed_forward" not in ours}
EXPERTS = {
    "feed_forward.router": "block_sparse_moe.gate",
    "feed_forward.experts.*.gate_proj": "block_sparse_moe.experts.*.w1",
    "feed_forward.experts.*.down_proj": "block_sparse_moe.experts.*.w2",
    "feed_forward.experts.*.up_proj": "block_sparse_moe.experts.*.w3",
}
OWN = {
    "sliding_window": None, "rms_norm_eps": 1e-5, "num_experts_per_tok": 2, "num_local_experts": 8,
}  # fmt: skip
FAMILY = replace(
    mistral.FAMILY,
    model_type="mixtral",
    architectures=("MixtralForCausalLM", "MixtralModel"),
    headless="MixtralModel",
    defaults=mistral.FAMILY.defaults | OWN,
    read=read,
    write=write,
    stacks=(Stack("layers", "model.layers", ATTENTION | EXPERTS),),
    ignored=frozenset("output_router_logits router_aux_loss_coef router_jitter_noise".split()),
)  # for training
