"""GPT, the first: as GPT-2, with the norms after each sublayer and none at the end.

Its option afn="gelu" means GELU with a tanh.

Source: Radford et al. 2018; transformers' OpenAIGPTLMHeadModel and OpenAIGPTModel.
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
    config = gpt2.read({**options, "n_inner": None, "activation_function": "gelu_new"})
    activation = named("afn", options["afn"], ACTIVATIONS)
    own = {"activation": activation, "head": FAMILY.has_head(options)}
    return replace(config, norm_placement="post", **own)


def write(config: LanguageModelConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    options = {n: v for n, v in gpt2.write(config).items() if n not in REPLACED}
    afn = {"afn": name_of(config.activation, ACTIVATIONS)}
    return options | FAMILY.architecture(config) | afn


OWN = {"vocab_size": 40478, "n_positions": 512, "afn": "gelu"}
REPLACED = ("n_inner", "activation_function")  # the first is always 4 x n_embd, the other is afn
FAMILY = replace(
    gpt2.FAMILY,
    model_type="openai-gpt",
    architectures=("OpenAIGPTLMHeadModel", "OpenAIGPTModel"),
    headless="OpenAIGPTModel",
    defaults={n: v for n, v in gpt2.FAMILY.defaults.items() if n not in REPLACED} | OWN,
    read=read,
    write=write,
    modules={
        "embedding.table": "transformer.tokens_embed",
        "embedding.positions": "transformer.positions_embed",
        "output": "lm_head",
    },
    fixed={},
    ignored=gpt2.FAMILY.ignored | {"n_special", "predict_special_tokens"},
)
