"""How fast are our models beside transformers' own, with the same weights on a processor?

Each family is a model of transformers with random weights, and what `from_pretrained` makes of its
folder: that both give the same logits and tokens is asserted. They work in turns on one thread; a
number is the median of the ratios of neighboring turns, theirs over ours, so above 1 ours is faster.
Theirs computes attention by SDPA where it can. The beginning of a text is fed at once, tokens then one by one, with
a cache, greedily. About 40 minutes of one processor.

Usage: OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE python benchmarks/families.py [--rounds 11] [--tiny]
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from tempfile import TemporaryDirectory

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers as hf
from equal_families import ALONE, DOORS, MASKED
from record import write_rows
from torch import Tensor, nn

from tested_transformer.generation.decoding_state import CausalState, Seq2SeqState
from tested_transformer.generation.generate import generate
from tested_transformer.models.loading import FAMILIES, from_pretrained

WIDTH, HEADS, LAYERS, FFN, VOCAB = 256, 8, 4, 1024, 4000
BATCH, LENGTH, NEW = 4, 64, 64
WHAT = (
    f"theirs over ours, processor time: {LAYERS} layers (BART: and {LAYERS} of the decoder), width {WIDTH}, "
    f"{HEADS} heads, {FFN} hidden features, {VOCAB} tokens, batch {BATCH}, length {LENGTH}; padded: half of the "
    f"texts are shorter and masked; generation: {NEW} tokens with a cache"
)


# Of each family that has the option. No dropout: both would draw, each its own.
SHARED = {
    "vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": None, "pad_token_id": 1,
    "decoder_start_token_id": 0, "max_position_embeddings": 2 * LENGTH,
}  # fmt: skip
DROPOUTS = "resid_pdrop embd_pdrop attn_pdrop hidden_dropout_prob attention_probs_dropout_prob"
UNDROPPED = dict.fromkeys(DROPOUTS.split(), 0.0)
EXPERTS, CHOSEN = 4, 2


def sizes(width: int) -> dict[str, dict]:
    """What each family calls the sizes, and its options: KV heads, experts, windows."""
    gpt = {"n_embd": width, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 2 * LENGTH}
    bert = {
        "hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
    }  # fmt: skip
    llama = bert | {"num_key_value_heads": HEADS // 2}
    experts = llama | {"num_local_experts": EXPERTS, "num_experts_per_tok": CHOSEN}
    latent = bert | {
        "num_key_value_heads": HEADS, "q_lora_rank": width // 2, "kv_lora_rank": width // 4,
        "qk_rope_head_dim": width // 16, "qk_nope_head_dim": width // 8, "v_head_dim": width // 8,
        "n_routed_experts": EXPERTS, "num_experts_per_tok": CHOSEN, "moe_intermediate_size": width,
        "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "n_shared_experts": 1,
    }  # fmt: skip
    bart = {
        "d_model": width, "encoder_layers": LAYERS, "decoder_layers": LAYERS, "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS, "encoder_ffn_dim": 4 * width, "decoder_ffn_dim": 4 * width,
        "dropout": 0.0, "forced_eos_token_id": None,
    }  # fmt: skip
    sized = {"hidden_size": width, "num_hidden_layers": LAYERS}
    return {
        "gpt2": gpt, "openai-gpt": gpt, "bert": bert, "albert": bert | {"embedding_size": width // 2},
        "bart": bart, "marian": bart, "mbart": bart,
        "llama": llama, "mistral": llama | {"sliding_window": LENGTH // 2}, "qwen3": llama | {"head_dim": width // HEADS},
        "falcon": sized | {"num_attention_heads": HEADS}, "gpt_bigcode": gpt, "deepseek_v2": latent | {"topk_method": "group_limited_greedy"},
        "deepseek_v3": latent, "gpt_oss": experts | {"head_dim": width // HEADS, "sliding_window": LENGTH // 2},
        "deepseek_v32": latent | {"index_topk": LENGTH // 2, "index_n_heads": 2, "index_head_dim": width // 8},
        "roformer": bert, "gptj": gpt | {"rotary_dim": width // HEADS // 2}, "gpt_neox": bert,
        "bloom": {"hidden_size": width, "n_layer": LAYERS, "n_head": HEADS},
        "mpt": {"d_model": width, "n_layers": LAYERS, "n_heads": HEADS, "max_seq_len": 2 * LENGTH},
        "t5": {"d_model": width, "d_kv": width // HEADS, "d_ff": 4 * width, "num_layers": LAYERS,
               "num_heads": HEADS, "dropout_rate": 0.0, "decoder_start_token_id": 0},
        "rwkv": sized | {"context_length": 2 * LENGTH}, "mamba": sized,
        "mamba2": sized | {"num_heads": HEADS, "head_dim": 2 * width // HEADS, "state_size": 32,
                               "n_groups": 1, "chunk_size": LENGTH},
        "mixtral": experts, "bitnet": llama,
    }  # fmt: skip


def theirs_of(kind: str, width: int) -> nn.Module:
    """Transformers' model."""
    usual = hf.AutoConfig.for_model(kind)
    shared = {name: given for name, given in (SHARED | UNDROPPED).items() if hasattr(usual, name)}
    config = hf.AutoConfig.for_model(kind, **shared | sizes(width)[kind])
    return DOORS.get(kind, hf.AutoModelForCausalLM).from_config(config)


def both(kind: str, size: int) -> tuple[nn.Module, nn.Module]:
    """Theirs, and ours with the same weights, large enough that tokens differ."""
    torch.manual_seed(0)
    theirs = theirs_of(kind, size).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.ndim == 2 and parameter.requires_grad:  # not fixed positions
                parameter.normal_(std=1.5 / size**0.5)
    with TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return theirs, from_pretrained(folder)


# --- Three pieces of work -------------------------------------------------------------------------


def logits_of(module: nn.Module, ids: Tensor, mask: Tensor | None) -> Tensor:
    """The logits; BART reads the text, and is told the same one as its target."""
    theirs = isinstance(module, hf.PreTrainedModel)
    causal = module.config.is_encoder_decoder if theirs else hasattr(module, "decode")
    given = {} if mask is None else {"attention_mask": mask.long() if theirs else mask}
    if not theirs:
        return module(ids, ids, **given) if causal else module(ids, **given)
    options = {"decoder_input_ids": ids} if causal else {}
    options |= {} if module.config.model_type in MASKED else {"use_cache": False}
    return module(input_ids=ids, **options, **given).logits


def infer(module: nn.Module, ids: Tensor, mask: Tensor | None) -> Tensor:
    """Forward alone."""
    with torch.no_grad():
        return logits_of(module, ids, mask)


def train(module: nn.Module, ids: Tensor, mask: Tensor | None) -> None:
    """Forward and backward."""
    logits = logits_of(module, ids, mask)
    nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
    module.zero_grad(set_to_none=True)


def write(module: nn.Module, ids: Tensor, mask: Tensor | None) -> Tensor:
    """Greedy generation with a cache: the new tokens."""
    start = torch.zeros(len(ids), 1, dtype=torch.long)
    if not isinstance(module, hf.PreTrainedModel):
        seq2seq = hasattr(module, "decode")
        state = Seq2SeqState(module, ids) if seq2seq else CausalState(module)
        return generate(state, start if seq2seq else ids, max_new=NEW, eos=None).tokens
    options = {"max_new_tokens": NEW, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    return module.generate(ids, **options)[:, -NEW:]


JOBS = {"forward": infer, "forward, padded": infer, "training step": train, "generation": write}


# --- Measuring ------------------------------------------------------------------------------------


def seconds(job: Callable[[], object]) -> float:
    """Processor time."""
    start = time.process_time()
    job()
    return time.process_time() - start


def ratio(work: list[Callable[[], object]], rounds: int) -> dict[str, float]:
    """Ours and theirs in turns, after one round to warm up; each goes first in every other round."""
    pairs = []
    for number in range(rounds + 1):
        order = (0, 1) if number % 2 else (1, 0)
        taken = {which: seconds(work[which]) for which in order}
        pairs.append((taken[0], taken[1]))
    found = sorted(theirs / ours for ours, theirs in pairs[1:])
    quarter = len(found) // 4
    return {
        "ratio": round(statistics.median(found), 2),
        "quartiles": [round(found[quarter], 2), round(found[-1 - quarter], 2)],
        "milliseconds": round(1000 * statistics.median(ours for ours, _ in pairs[1:]), 2),
    }


def row_of(kind: str, name: str, size: int, rounds: int) -> dict:
    """One family and one piece of work, after asking whether both answer the same."""
    theirs, ours = both(kind, size)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, VOCAB, (1 if kind in ALONE else BATCH, LENGTH), generator=generator)
    mask = None
    if name == "forward, padded":
        mask = torch.ones(BATCH, LENGTH, dtype=torch.bool)
        mask[BATCH // 2 :, LENGTH // 2 :] = False
    if name == "generation":
        same = torch.equal(write(ours, ids, None), write(theirs, ids, None))
        assert same, f"{kind} generates other tokens"
    else:
        real = slice(None) if mask is None else mask
        pair = [infer(module, ids, mask)[real] for module in (ours, theirs)]
        torch.testing.assert_close(*pair, rtol=1e-3, atol=1e-3)
    for module in (theirs, ours):
        module.train(name == "training step")
    work = [partial(JOBS[name], module, ids, mask) for module in (ours, theirs)]
    return {"family": kind, "method": name} | ratio(work, rounds)


def main() -> None:
    """Measure every family, print a table and store it; a tiny run stores nothing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--only", help="one family; nothing is stored")
    parser.add_argument("--tiny", action="store_true", help="a small model, to see that all runs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    hf.utils.logging.set_verbosity_error()
    rows = []
    for kind in (kind for kind in sizes(WIDTH) if kind in FAMILIES and given.only in (None, kind)):
        left_out = (
            {"generation"} if kind in MASKED else {"forward, padded"} if kind in ALONE else set()
        )
        for name in (name for name in JOBS if name not in left_out):
            rows.append(row_of(kind, name, 64 if given.tiny else WIDTH, given.rounds))
            row = rows[-1]
            print(f"{kind:8}{name:18}{row['ratio']:6.2f}  {row['quartiles']}", flush=True)
            if not given.tiny and not given.only:
                load = (
                    f"{os.cpu_count()} processors, load {os.getloadavg()[2]:.1f} (1: nothing else)"
                )
                write_rows("families", WHAT, rows, transformers=hf.__version__, machine=load)


if __name__ == "__main__":
    main()
