"""GPT, the first: as GPT-2, with the norms after each sublayer and none at the end.

Its option afn="gelu" means GELU with a tanh.

Source: Radford et al. 2018; transformers' OpenAIGPTLMHeadModel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..family import Options, name_of, named
from ..language_model import LanguageModelConfig
from . import gpt2

ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}


def read(options: Options) -> LanguageModelConfig:
    """Their options in our words."""
    shared = {"n_inner": None, "activation_function": "gelu_new"}
    activation = named("afn", options["afn"], ACTIVATIONS)
    config = gpt2.read({**options, **shared})
    return replace(config, norm_placement="post", activation=activation)


def write(config: LanguageModelConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    options = gpt2.write(config)
    del options["n_inner"], options["activation_function"]  # always 4 x n_embd; afn
    return options | {"afn": name_of(config.activation, ACTIVATIONS)}


DEFAULTS = {"vocab_size": 40478, "n_positions": 512, "afn": "gelu"}
RENAMED = {"embedding.table": "transformer.tokens_embed", "output": "lm_head"}
FAMILY = replace(
    gpt2.FAMILY,
    model_type="openai-gpt",
    architecture="OpenAIGPTLMHeadModel",
    defaults={
        name: value
        for name, value in (dict(gpt2.FAMILY.defaults) | DEFAULTS).items()
        if name not in ("n_inner", "activation_function")
    },
    read=read,
    write=write,
    modules=RENAMED | {"embedding.positions": "transformer.positions_embed"},
    fixed={},
    ignored=gpt2.FAMILY.ignored | {"n_special", "predict_special_tokens"},
)
