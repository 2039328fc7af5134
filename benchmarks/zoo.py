"""Which of today's model families keep the contract: tiny random models of transformers, on a CPU.

Usage: python benchmarks/zoo.py [--only llama ...] [--limit 60]

Each family is made from a config with random weights, and held to the contract in a process of its own,
so that one that hangs or dies costs one answer. Goes on where it stopped: delete
benchmarks/results/zoo.json to begin anew. What was found of a failure stands in zoo_notes.yml.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "code")]

WHAT = (
    f"what the contract says of tiny random models, made from configs of transformers {version('transformers')}: "
    "property -> outcome, and what was found"
)

SMALL = {
    "vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SEQ2SEQ = {
    "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40,
}  # fmt: skip
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
LATENT = {
    "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 6,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
    "moe_intermediate_size": 16, "first_k_dense_replace": 1, "num_key_value_heads": 4,
}  # fmt: skip
DELTA = {
    "head_dim": 6, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 6,
    "linear_value_head_dim": 6, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip

# family: the prefix of its classes, the head, what its config needs besides SMALL
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "albert": ("Albert", "ForMaskedLM", {"embedding_size": 12}),
    "bamba": ("Bamba", "ForCausalLM", {"mamba_n_heads": 4, "mamba_d_head": 12, "mamba_d_state": 8,
              "mamba_n_groups": 1, "attn_layer_indices": [1]}),
    "bart": ("Bart", "ForConditionalGeneration", SEQ2SEQ),
    "bert": ("Bert", "ForMaskedLM", {}),
    "big_bird": ("BigBird", "ForMaskedLM", {"attention_type": "original_full"}),
    "bloom": ("Bloom", "ForCausalLM", {"n_layer": 2, "n_head": 4}),
    "cohere": ("Cohere", "ForCausalLM", {}),
    "deberta_v2": ("DebertaV2", "ForMaskedLM", {}),
    "deepseek_v2": ("DeepseekV2", "ForCausalLM", LATENT),
    "deepseek_v3": ("DeepseekV3", "ForCausalLM", LATENT),
    "deepseek_v32": ("DeepseekV32", "ForCausalLM", LATENT | {"index_topk": 64, "index_n_heads": 2, "index_head_dim": 8}),
    "diffllama": ("DiffLlama", "ForCausalLM", {}),
    "distilbert": ("DistilBert", "ForMaskedLM", {"dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 40}),
    "electra": ("Electra", "ForMaskedLM", {"embedding_size": 12}),
    "ernie4_5": ("Ernie4_5", "ForCausalLM", {"head_dim": 6}),
    "exaone4": ("Exaone4", "ForCausalLM", {"sliding_window": 4}),
    "falcon": ("Falcon", "ForCausalLM", {"new_decoder_architecture": False}),
    "falcon_mamba": ("FalconMamba", "ForCausalLM", {"state_size": 4}),
    "gemma": ("Gemma", "ForCausalLM", {"head_dim": 6}),
    "gemma2": ("Gemma2", "ForCausalLM", {"head_dim": 6, "sliding_window": 4}),
    "gemma3": ("Gemma3", "ForCausalLM", {"head_dim": 6, "sliding_window": 4, "config": "Gemma3TextConfig"}),
    "glm4": ("Glm4", "ForCausalLM", {"head_dim": 6}),
    "gpt2": ("GPT2", "LMHeadModel", {"n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 40}),
    "gpt_bigcode": ("GPTBigCode", "ForCausalLM", {"n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 40}),
    "gpt_neo": ("GPTNeo", "ForCausalLM", {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 4}),
    "gpt_neox": ("GPTNeoX", "ForCausalLM", {}),
    "gpt_oss": ("GptOss", "ForCausalLM", EXPERTS | {"head_dim": 6, "sliding_window": 4}),
    "gptj": ("GPTJ", "ForCausalLM", {"n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4}),
    "granite": ("Granite", "ForCausalLM", {}),
    "jamba": ("Jamba", "ForCausalLM", EXPERTS | {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False, "mamba_d_state": 4}),
    "llama": ("Llama", "ForCausalLM", {}),
    "longformer": ("Longformer", "ForMaskedLM", {"attention_window": [4, 4], "type_vocab_size": 2}),
    "mamba": ("Mamba", "ForCausalLM", {"state_size": 4}),
    "mamba2": ("Mamba2", "ForCausalLM", {"num_heads": 4, "head_dim": 12, "state_size": 8, "n_groups": 1, "chunk_size": 4}),
    "marian": ("Marian", "MTModel", SEQ2SEQ | {"decoder_start_token_id": 0}),
    "mbart": ("MBart", "ForConditionalGeneration", SEQ2SEQ),
    "minimax": ("MiniMax", "ForCausalLM", EXPERTS | {"head_dim": 6, "block_size": 4}),
    "mistral": ("Mistral", "ForCausalLM", {"sliding_window": 4}),
    "mixtral": ("Mixtral", "ForCausalLM", EXPERTS),
    "modernbert": ("ModernBert", "ForMaskedLM", {"local_attention": 4, "global_attn_every_n_layers": 2}),
    "mpt": ("Mpt", "ForCausalLM", {"d_model": 24, "n_heads": 4, "n_layers": 2, "max_seq_len": 64}),
    "nanochat": ("NanoChat", "ForCausalLM", {}),
    "nystromformer": ("Nystromformer", "ForMaskedLM", {"segment_means_seq_len": 64, "num_landmarks": 64}),
    "olmo2": ("Olmo2", "ForCausalLM", {}),
    "olmoe": ("Olmoe", "ForCausalLM", EXPERTS),
    "opt": ("OPT", "ForCausalLM", {"ffn_dim": 40, "word_embed_proj_dim": 24}),
    "phi": ("Phi", "ForCausalLM", {"partial_rotary_factor": 0.67}),
    "phi3": ("Phi3", "ForCausalLM", {"sliding_window": 4}),
    "qwen2": ("Qwen2", "ForCausalLM", {}),
    "qwen3": ("Qwen3", "ForCausalLM", {"head_dim": 6}),
    "qwen3_moe": ("Qwen3Moe", "ForCausalLM", EXPERTS | {"head_dim": 6}),
    "qwen3_next": ("Qwen3Next", "ForCausalLM", EXPERTS | DELTA | {"shared_expert_intermediate_size": 16}),
    "recurrent_gemma": ("RecurrentGemma", "ForCausalLM", {"lru_width": 24, "attention_window_size": 8, "num_hidden_layers": 3}),
    "reformer": ("Reformer", "ModelWithLMHead", {"is_decoder": True, "attn_layers": ["local", "local"], "axial_pos_shape": [8, 8], "axial_pos_embds_dim": [8, 16], "attention_head_size": 6, "local_attn_chunk_length": 4, "feed_forward_size": 40}),
    "roberta": ("Roberta", "ForMaskedLM", {"pad_token_id": 1}),
    "roformer": ("RoFormer", "ForMaskedLM", {"embedding_size": 24}),
    "rwkv": ("Rwkv", "ForCausalLM", {"context_length": 64, "attention_hidden_size": 24}),
    "smollm3": ("SmolLM3", "ForCausalLM", {}),
    "stablelm": ("StableLm", "ForCausalLM", {}),
    "starcoder2": ("Starcoder2", "ForCausalLM", {"sliding_window": 4}),
    "t5": ("T5", "ForConditionalGeneration", {"d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}),
    "xglm": ("XGLM", "ForCausalLM", {"d_model": 24, "ffn_dim": 40, "num_layers": 2, "attention_heads": 4}),
    "xlnet": ("XLNet", "LMHeadModel", {"d_model": 24, "n_layer": 2, "n_head": 4, "d_inner": 40, "max_position_embeddings": None, "attn_type": "uni"}),
    "zamba2": ("Zamba2", "ForCausalLM", {"mamba_d_state": 8, "n_mamba_heads": 4, "mamba_headdim": 12, "hybrid_layer_ids": [1], "layers_block_type": ["mamba", "hybrid"], "use_mamba_kernels": False}),
}  # fmt: skip


def make(family: str) -> Any:
    """A tiny model of the family with random weights, the same in every process."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    prefix, head, options = FAMILIES[family]
    options = {name: value for name, value in (SMALL | options).items() if value is not None}
    config = getattr(transformers, options.pop("config", f"{prefix}Config"))(**options)
    torch.manual_seed(0)
    return getattr(transformers, prefix + head)(config).eval()


globals().update({family: partial(make, family) for family in FAMILIES})  # targets of `contract`


def measure(family: str, limit: float) -> dict[str, Any]:
    """What the contract says of a family: property -> outcome and what was found."""
    from tested_transformer.reader.subprocesses import results_apart
    from tested_transformer.specs.contract import PROPERTIES, Report

    start, names = time.monotonic(), [each.name for each in PROPERTIES]
    report = Report(tuple(results_apart(f"{__file__}:{family}", names, limit=limit)))
    return {
        "family": family,
        "broken": [each.name for each in report.broken],
        "properties": {each.name: [each.outcome, each.what] for each in report.results},
        "seconds": round(time.monotonic() - start),
    }


def main() -> None:
    """Go through the families and write after each."""
    from record import measure_missing

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--limit", type=float, default=60.0)
    options = parser.parse_args()
    wanted = [{"family": family} for family in options.only]
    measure_missing(
        "zoo", WHAT, wanted, partial(measure, limit=options.limit), ("family", "broken", "seconds")
    )


if __name__ == "__main__":
    main()
