"""Mamba-2: state spaces with one decay per head, as transformers stores them.

Source: Dao and Gu 2024; transformers' Mamba2ForCausalLM and Mamba2Model.
"""

from __future__ import annotations

import math
from typing import Any

from ..family import Family, Options, Stack, option_error
from ..mamba import Mamba2, Mamba2Config
from . import mamba


def read(options: Options) -> Mamba2Config:
    """Their options in our words."""
    hidden, heads, size = (options[name] for name in ("hidden_size", "num_heads", "head_dim"))
    if options["expand"] * hidden != heads * size:
        wanted = f"{heads} heads x {size} features / hidden_size {hidden}"
        raise option_error("expand", options["expand"], wanted)
    step_min, step_max = read_limit(options["time_step_limit"])
    return Mamba2Config(
        vocab_size=options["vocab_size"], d_model=hidden, num_layers=options["num_hidden_layers"],
        norm_eps=options["layer_norm_epsilon"], float32_residual=options["residual_in_fp32"],
        tied_output=options["tie_word_embeddings"], head=FAMILY.has_head(options),
        num_heads=heads, d_head=size, num_states=options["state_size"],
        num_groups=options["n_groups"], width=options["conv_kernel"], bias=options["use_bias"],
        conv_bias=options["use_conv_bias"], step_min=step_min, step_max=step_max,
        chunk_size=options["chunk_size"],
    )  # fmt: skip


def read_limit(limit: Any) -> tuple[float, float | None]:
    """Two numbers; for infinity, which JSON lacks, transformers writes a word, and we None."""
    numbers = [float(each["__float__"]) if isinstance(each, dict) else each for each in limit]
    if len(numbers) != 2 or not all(isinstance(each, int | float) for each in numbers):
        raise option_error("time_step_limit", limit, "two numbers")
    return float(numbers[0]), None if numbers[1] == math.inf else float(numbers[1])


def write(config: Mamba2Config) -> dict[str, Any]:
    """Our configuration in their words."""
    return FAMILY.architecture(config) | {
        "vocab_size": config.vocab_size, "hidden_size": config.d_model,
        "num_hidden_layers": config.num_layers, "layer_norm_epsilon": config.norm_eps,
        "residual_in_fp32": config.float32_residual, "tie_word_embeddings": config.tied_output,
        "num_heads": config.num_heads, "head_dim": config.d_head, "state_size": config.num_states,
        "expand": config.num_heads * config.d_head // config.d_model,
        "n_groups": config.num_groups, "conv_kernel": config.width, "use_bias": config.bias,
        "use_conv_bias": config.conv_bias, "time_step_limit": [config.step_min, config.step_max or math.inf],
        "chunk_size": config.chunk_size,
    }  # fmt: skip


LAYER = {
    "norm": "norm",
    "mixer.in_proj": "mixer.in_proj",
    "mixer.convolution": "mixer.conv1d",
    "mixer.step_bias": "mixer.dt_bias",
    "mixer.a_log": "mixer.A_log",
    "mixer.skip": "mixer.D",
    "mixer.norm_weight": "mixer.norm.weight",
    "mixer.output": "mixer.out_proj",
}
FAMILY = Family(
    model_type="mamba2",
    architectures=("Mamba2ForCausalLM", "Mamba2Model"),
    headless="Mamba2Model",
    config=Mamba2Config,
    build=Mamba2,
    defaults={
        "vocab_size": 32768, "hidden_size": 4096, "state_size": 128, "num_hidden_layers": 64,
        "num_heads": 128, "head_dim": 64, "layer_norm_epsilon": 1e-5, "expand": 2,
        "conv_kernel": 4, "n_groups": 8, "use_bias": False, "use_conv_bias": True,
        "residual_in_fp32": True, "time_step_limit": (0.0, float("inf")), "chunk_size": 256,
        "tie_word_embeddings": False,
    },
    read=read,
    write=write,
    dropout={},
    modules=mamba.FAMILY.modules,
    stacks=(Stack("layers", "backbone.layers", LAYER),),
    base="backbone.",
    fixed={"hidden_act": ("silu",), "rms_norm": (True,), "norm_before_gate": (False,)},
    ignored=mamba.STEPS | {"time_step_rank", "time_step_scale", "time_step_init_scheme"},
    renamed=mamba.FAMILY.renamed,
)  # fmt: skip
