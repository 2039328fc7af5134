"""GPTBigCode, the model of SantaCoder and StarCoder: GPT-2 in which all heads share one key and one value.

With multi_query=False it is GPT-2, whose query, key and value are stored head by head.

Source: Ben Allal et al. 2023 (SantaCoder); Shazeer 2019; transformers' GPTBigCodeForCausalLM.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..family import Options, Stack, name_of, named
from ..language_model import LanguageModelConfig
from . import gpt2

ACTIVATIONS = {
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu": "gelu", "relu": "relu", "silu": "silu", "swish": "silu",
}  # fmt: skip


def read(options: Options) -> LanguageModelConfig:
    """Their options in our words."""
    activation = named("activation_function", options["activation_function"], ACTIVATIONS)
    config = gpt2.read({**options, "activation_function": "gelu_new"})
    return replace(
        config, activation=activation, head=FAMILY.has_head(options),
        num_kv_heads=1 if options["multi_query"] else config.num_heads,
    )  # fmt: skip


def write(config: LanguageModelConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    own = {
        "activation_function": name_of(config.activation, ACTIVATIONS),
        "multi_query": config.num_kv_heads == 1,
    }
    return gpt2.write(config) | FAMILY.architecture(config) | own


OWN = {"activation_function": "gelu_pytorch_tanh", "multi_query": True}
FAMILY = replace(
    gpt2.FAMILY,
    model_type="gpt_bigcode",
    architectures=("GPTBigCodeForCausalLM", "GPTBigCodeModel"),
    headless="GPTBigCodeModel",
    defaults=gpt2.FAMILY.defaults | OWN,
    read=read,
    write=write,
    stacks=(Stack("layers", "transformer.h", gpt2.LAYER),),
    fixed={"scale_attn_weights": (True,)},
    ignored=gpt2.FAMILY.ignored
    | frozenset(  # the softmax is in float32 here in any case; the rest are of its inference runner
        "attention_softmax_in_fp32 scale_attention_softmax_in_fp32 num_key_value_heads "
        "inference_runner max_batch_size max_sequence_length pad_key_length "
        "pre_allocate_kv_cache validate_runner_input".split()
    ),
    transposed=False,
    by_group=True,
    leftovers=r"(transformer\.)?(h\.\d+\.attn\.)?(bias|masked_bias)",  # the causal mask
)
