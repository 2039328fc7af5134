"""GPT-2: pre-norm, learned positions, GELU with a tanh; matrices stored (in, out), q, k and v in one.

Source: Radford et al. 2019; transformers' GPT2LMHeadModel and GPT2Model.
"""

from __future__ import annotations

from typing import Any

from ..family import Family, Options, Stack, name_of, named
from ..language_model import LanguageModelConfig

ACTIVATIONS = {
    "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu",
    "silu": "silu", "swish": "silu",
}  # fmt: skip


def read(options: Options) -> LanguageModelConfig:
    """Their options in our words."""
    return LanguageModelConfig(
        options["vocab_size"], d_model=options["n_embd"], num_heads=options["n_head"],
        num_layers=options["n_layer"], d_ff=options["n_inner"], dropout=0.0,
        activation=named("activation_function", options["activation_function"], ACTIVATIONS),
        norm_placement="pre", norm_eps=options["layer_norm_epsilon"], positions="learned",
        max_length=options["n_positions"], scale_embedding=False,
        tied_output=options["tie_word_embeddings"], pad_id=None, head=FAMILY.has_head(options),
    )  # fmt: skip


def write(config: LanguageModelConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    d_ff = None if config.d_ff == 4 * config.d_model else config.d_ff
    return FAMILY.architecture(config) | {
        "vocab_size": config.vocab_size, "n_embd": config.d_model, "n_head": config.num_heads,
        "n_layer": config.num_layers, "n_inner": d_ff, "n_positions": config.max_length,
        "activation_function": name_of(config.activation, ACTIVATIONS),
        "layer_norm_epsilon": config.norm_eps, "tie_word_embeddings": config.tied_output,
    }  # fmt: skip


LAYER = {
    "residuals.0.norm": "ln_1",
    "attention.query attention.key attention.value": "attn.c_attn",
    "attention.output": "attn.c_proj",
    "residuals.1.norm": "ln_2",
    "feed_forward.up_proj": "mlp.c_fc",
    "feed_forward.down_proj": "mlp.c_proj",
}
FAMILY = Family(
    model_type="gpt2",
    architectures=("GPT2LMHeadModel", "GPT2Model"),
    headless="GPT2Model",
    defaults={
        "vocab_size": 50257, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_inner": None,
        "n_positions": 1024, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True, "embd_pdrop": 0.1, "attn_pdrop": 0.1, "resid_pdrop": 0.1,
    },
    read=read,
    write=write,
    dropout={"embd_pdrop": "embedding", "attn_pdrop": "attention", "resid_pdrop": "residual"},
    modules={
        "embedding.table": "transformer.wte", "embedding.positions": "transformer.wpe",
        "norm": "transformer.ln_f", "output": "lm_head",
    },
    stacks=(Stack("layers", "transformer.h", LAYER),),
    base="transformer.",
    fixed={
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "reorder_and_upcast_attn": (False,),
    },
    ignored=frozenset(  # heads for other tasks, older names of n_positions and use_cache
        "summary_type summary_use_proj summary_activation summary_proj_to_labels "
        "summary_first_dropout n_ctx output_past".split()
    ),
    transposed=True,
    leftovers=r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",  # the causal mask
)  # fmt: skip
