"""GPT-J: parallel layers with one norm; the first features of each head rotate, interleaved.

The output layer has a bias, attention has none. resid_pdrop other than 0 is refused: a layer has it twice there,
once here.

Source: Wang and Komatsuzaki 2021; transformers' GPTJForCausalLM and GPTJModel.
"""

from __future__ import annotations

from typing import Any

from ..family import Family, Options, Stack, name_of, named
from ..parallel import ParallelLanguageModel, ParallelLanguageModelConfig
from . import gpt2


def read(options: Options) -> ParallelLanguageModelConfig:
    """Their options in our words."""
    d_head, rotary_dim = options["n_embd"] // options["n_head"], options["rotary_dim"]
    return ParallelLanguageModelConfig(
        options["vocab_size"], d_model=options["n_embd"], num_heads=options["n_head"],
        num_layers=options["n_layer"], d_ff=options["n_inner"], dropout=0.0,
        activation=named("activation_function", options["activation_function"], gpt2.ACTIVATIONS),
        num_parallel_norms=1, norm_placement="pre", norm_eps=options["layer_norm_epsilon"],
        attention_bias=False, positions="rotary", position_layout="interleaved",
        rotary_dim=None if rotary_dim == d_head else rotary_dim,
        max_length=options["n_positions"], scale_embedding=False,
        tied_output=options["tie_word_embeddings"], output_bias=True, pad_id=None,
        head=FAMILY.has_head(options),
    )  # fmt: skip


def write(config: ParallelLanguageModelConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    d_ff = None if config.d_ff == 4 * config.d_model else config.d_ff
    return FAMILY.architecture(config) | {
        "vocab_size": config.vocab_size, "n_embd": config.d_model, "n_head": config.num_heads,
        "n_layer": config.num_layers, "n_inner": d_ff, "n_positions": config.max_length or 2048,
        "activation_function": name_of(config.activation, gpt2.ACTIVATIONS),
        "layer_norm_epsilon": config.norm_eps, "rotary_dim": config.rotary_dim or config.d_head,
        "tie_word_embeddings": config.tied_output,
    }  # fmt: skip


LAYER = {
    "shared_norm": "ln_1",
    "attention.query": "attn.q_proj",
    "attention.key": "attn.k_proj",
    "attention.value": "attn.v_proj",
    "attention.output": "attn.out_proj",
    "feed_forward.up_proj": "mlp.fc_in",
    "feed_forward.down_proj": "mlp.fc_out",
}
FAMILY = Family(
    model_type="gptj",
    architectures=("GPTJForCausalLM", "GPTJModel"),
    headless="GPTJModel",
    config=ParallelLanguageModelConfig,
    build=ParallelLanguageModel,
    defaults={
        "vocab_size": 50400, "n_positions": 2048, "n_embd": 4096, "n_layer": 28, "n_head": 16,
        "rotary_dim": 64, "n_inner": None, "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "tie_word_embeddings": False, "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
    read=read,
    write=write,
    dropout={"embd_pdrop": "embedding", "attn_pdrop": "attention"},
    modules={
        "embedding.table": "transformer.wte", "norm": "transformer.ln_f", "output": "lm_head",
    },
    stacks=(Stack("layers", "transformer.h", LAYER),),
    base="transformer.",
    fixed={"resid_pdrop": (0.0,), "rotary": (True,), "scale_attn_weights": (True,)},
    ignored=gpt2.FAMILY.ignored | {"gradient_checkpointing"},
    leftovers=r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",  # the causal mask
)  # fmt: skip
