"""Mamba: selective state spaces, as transformers stores them.

Its discretization of b is "euler", whatever the paper prints. Options that say how step sizes are initialized
change no number of a model that is loaded.

Source: Gu and Dao 2023; transformers' MambaForCausalLM and MambaModel.
"""

from __future__ import annotations

import math
from typing import Any

from ..family import Family, Options, Stack, option_error
from ..mamba import Mamba, MambaConfig


def read(options: Options) -> MambaConfig:
    """Their options in our words."""
    hidden, rank = options["hidden_size"], options["time_step_rank"]
    if isinstance(rank, str) and rank != "auto":
        raise option_error("time_step_rank", rank, 'an int or "auto"')
    return MambaConfig(
        vocab_size=options["vocab_size"], d_model=hidden, num_layers=options["num_hidden_layers"],
        norm_eps=options["layer_norm_epsilon"], float32_residual=options["residual_in_fp32"],
        tied_output=options["tie_word_embeddings"], head=FAMILY.has_head(options),
        num_states=options["state_size"], d_inner=int(options["expand"] * hidden),
        rank=math.ceil(hidden / 16) if rank == "auto" else rank, width=options["conv_kernel"],
        bias=options["use_bias"], conv_bias=options["use_conv_bias"],
    )  # fmt: skip


def write(config: MambaConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    return FAMILY.architecture(config) | {
        "vocab_size": config.vocab_size, "hidden_size": config.d_model,
        "num_hidden_layers": config.num_layers, "layer_norm_epsilon": config.norm_eps,
        "residual_in_fp32": config.float32_residual, "tie_word_embeddings": config.tied_output,
        "state_size": config.num_states, "expand": config.d_inner // config.d_model,
        "time_step_rank": config.rank, "conv_kernel": config.width, "use_bias": config.bias,
        "use_conv_bias": config.conv_bias,
    }  # fmt: skip


LAYER = {
    "norm": "norm",
    "mixer.in_proj": "mixer.in_proj",
    "mixer.convolution": "mixer.conv1d",
    "mixer.select": "mixer.x_proj",
    "mixer.step": "mixer.dt_proj",
    "mixer.a_log": "mixer.A_log",
    "mixer.skip": "mixer.D",
    "mixer.output": "mixer.out_proj",
}
STEPS = frozenset({"time_step_min", "time_step_max", "time_step_floor", "rescale_prenorm_residual"})
FAMILY = Family(
    model_type="mamba",
    architectures=("MambaForCausalLM", "MambaModel"),
    headless="MambaModel",
    config=MambaConfig,
    build=Mamba,
    defaults={
        "vocab_size": 50280, "hidden_size": 768, "state_size": 16, "num_hidden_layers": 32,
        "layer_norm_epsilon": 1e-5, "expand": 2, "conv_kernel": 4, "use_bias": False,
        "use_conv_bias": True, "residual_in_fp32": True, "time_step_rank": "auto",
        "tie_word_embeddings": True,
    },
    read=read,
    write=write,
    dropout={},
    modules={
        "embedding": "backbone.embeddings", "norm": "backbone.norm_f", "output": "lm_head",
    },
    stacks=(Stack("layers", "backbone.layers", LAYER),),
    base="backbone.",
    fixed={"hidden_act": ("silu",), "rms_norm": (True,)},
    ignored=STEPS
    | {
        "time_step_scale", "time_step_init_scheme", "use_mambapy", "use_associative_scan",
        "intermediate_size",  # transformers computes it from expand
        "d_inner", "d_model", "n_layer", "ssm_cfg", "fused_add_norm", "pad_vocab_size_multiple",
    },
    renamed={r"^(backbone\.)?embedding\.": r"\1embeddings."},
)  # fmt: skip
