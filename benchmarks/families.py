"""How fast are our models beside transformers' own, with the same weights on a processor?

Each family is a model of transformers with random weights, and what `from_pretrained` makes of its
folder: that both give the same logits and tokens is asserted. They work in turns on one thread; a
number is the median of the ratios of neighboring turns, theirs over ours, so above 1 ours is faster.
Theirs computes attention by SDPA. The beginning of a text is fed at once, tokens then one by one, with
a cache, greedily. About 8 minutes of one processor.

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


def gpt2(size: int) -> nn.Module:
    """GPT-2."""
    config = hf.GPT2Config(
        vocab_size=VOCAB, n_positions=2 * LENGTH, n_embd=size, n_layer=LAYERS, n_head=HEADS,
        n_inner=4 * size, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0,
        eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    return hf.GPT2LMHeadModel(config)


def llama(size: int) -> nn.Module:
    """Llama, with half as many KV heads as heads."""
    config = hf.LlamaConfig(
        vocab_size=VOCAB, hidden_size=size, intermediate_size=4 * size, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=HEADS // 2, bos_token_id=0,
        max_position_embeddings=2 * LENGTH, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config)


def bert(size: int) -> nn.Module:
    """BERT with its masked language modeling head."""
    config = hf.BertConfig(
        vocab_size=VOCAB, hidden_size=size, intermediate_size=4 * size, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, max_position_embeddings=2 * LENGTH, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, pad_token_id=0,
    )  # fmt: skip
    return hf.BertForMaskedLM(config)


def bart(size: int) -> nn.Module:
    """BART."""
    config = hf.BartConfig(
        vocab_size=VOCAB, d_model=size, encoder_layers=LAYERS, decoder_layers=LAYERS,
        encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=4 * size,
        decoder_ffn_dim=4 * size, max_position_embeddings=2 * LENGTH, dropout=0.0,
        bos_token_id=0, eos_token_id=None, pad_token_id=1, decoder_start_token_id=0,
        forced_eos_token_id=None,
    )  # fmt: skip
    return hf.BartForConditionalGeneration(config)


MODELS = {"gpt2": gpt2, "llama": llama, "bert": bert, "bart": bart}


def both(kind: str, size: int) -> tuple[nn.Module, nn.Module]:
    """Theirs, and ours with the same weights, large enough that tokens differ."""
    torch.manual_seed(0)
    theirs = MODELS[kind](size).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.ndim == 2:
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
    options |= {} if module.config.model_type == "bert" else {"use_cache": False}
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
    ids = torch.randint(3, VOCAB, (BATCH, LENGTH), generator=generator)
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
    parser.add_argument("--tiny", action="store_true", help="a small model, to see that all runs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    hf.utils.logging.set_verbosity_error()
    rows = []
    for kind in (kind for kind in MODELS if kind in FAMILIES):
        for name in (name for name in JOBS if kind != "bert" or name != "generation"):
            rows.append(row_of(kind, name, 32 if given.tiny else WIDTH, given.rounds))
            row = rows[-1]
            print(f"{kind:8}{name:18}{row['ratio']:6.2f}  {row['quartiles']}", flush=True)
            if not given.tiny:
                load = (
                    f"{os.cpu_count()} processors, load {os.getloadavg()[2]:.1f} (1: nothing else)"
                )
                write_rows("families", WHAT, rows, transformers=hf.__version__, machine=load)


if __name__ == "__main__":
    main()
