"""How far are our models from transformers' own, with the same weights?

Each family is a small model of transformers with random weights, norms and biases included, and what
`from_pretrained` makes of its folder. A row has the largest difference of logits and of gradients in
float32, the largest value beside each, whether 16 greedy tokens are equal with a cache, and whether the
folder that `save_pretrained` writes gives transformers the same logits back. One text in three is padded.

Usage: OMP_NUM_THREADS=1 python benchmarks/equal_families.py [--only llama]
"""

import argparse
import os
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers as hf
from record import write_rows
from torch import Tensor, nn

from tested_transformer.generation.decoding_state import CausalState, Seq2SeqState
from tested_transformer.generation.generate import generate
from tested_transformer.models.loading import FAMILIES, from_pretrained, save_pretrained

WHAT = "largest differences from transformers in float32, small models with random weights"
VOCAB, LENGTH, NEW = 40, 12, 16
SHARED = {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": None, "pad_token_id": 1}
LLAMA = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
GPT = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
BERT = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
PLACES = {"max_position_embeddings": 64}
BART = {
    "d_model": 32, "encoder_layers": 3, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "dropout": 0.0,
    "decoder_start_token_id": 0, "forced_eos_token_id": None,
}  # fmt: skip
DEEPSEEK = LLAMA | {
    "num_key_value_heads": 4, "q_lora_rank": 20, "kv_lora_rank": 16, "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8, "v_head_dim": 6, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 12, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2,
    "n_shared_experts": 1,
}  # fmt: skip
SIZES = {
    "gpt2": GPT | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "openai-gpt": GPT | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "gpt_bigcode": GPT | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "llama": LLAMA, "mistral": LLAMA | {"sliding_window": 5}, "qwen3": LLAMA | {"head_dim": 6},
    "bitnet": LLAMA, "mixtral": LLAMA | {"num_local_experts": 4},
    "falcon": {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4},
    "gpt_oss": LLAMA | {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2,
                        "sliding_window": 5},
    "deepseek_v2": DEEPSEEK | {"topk_method": "group_limited_greedy"}, "deepseek_v3": DEEPSEEK,
    "deepseek_v32": DEEPSEEK | {"index_topk": 6, "index_n_heads": 2, "index_head_dim": 8},
    "gpt_neox": {name: n for name, n in LLAMA.items() if name != "num_key_value_heads"},
    "gptj": GPT | {"rotary_dim": 4},
    "bloom": {"hidden_size": 32, "n_layer": 3, "n_head": 4},
    "mpt": {"d_model": 32, "n_layers": 3, "n_heads": 4, "max_seq_len": 64},
    "rwkv": {"hidden_size": 32, "num_hidden_layers": 3, "context_length": 64},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 3, "state_size": 4},
    "mamba2": {"hidden_size": 32, "num_hidden_layers": 3, "state_size": 8, "num_heads": 8,
               "head_dim": 8, "n_groups": 2, "chunk_size": 5},
    "bert": BERT | PLACES, "albert": BERT | PLACES | {"embedding_size": 20}, "roformer": BERT | PLACES,
    "bart": BART | PLACES, "marian": BART | PLACES, "mbart": BART | PLACES,
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 3, "num_heads": 4, "dropout_rate": 0.0},
    "xlnet": {"d_model": 32, "n_layer": 3, "n_head": 4, "d_inner": 48, "dropout": 0.0},
    "whisper": BART | {"num_mel_bins": 10, "max_source_positions": 9, "max_target_positions": 64},
    "vit": BERT | {"image_size": 12, "patch_size": 4, "num_labels": 7},
}  # fmt: skip
MASKED = ("bert", "albert", "roformer")
ALONE = ("rwkv",)  # one text: transformers' has no mask, and mixes up a batch
TWO_TEXTS = ("bart", "marian", "mbart", "t5")  # the encoder's and the decoder's
# What transformers calls what a model reads; ours takes them in this order.
READS = dict.fromkeys(TWO_TEXTS, ("input_ids", "decoder_input_ids")) | {
    "whisper": ("input_features", "decoder_input_ids"), "vit": ("pixel_values",),
}  # fmt: skip
NO_TOKENS = (*MASKED, "xlnet", "whisper", "vit")  # Whisper's generation has rules of its own
DOORS = dict.fromkeys(TWO_TEXTS, hf.AutoModelForSeq2SeqLM) | {
    "whisper": hf.AutoModelForSpeechSeq2Seq, "vit": hf.AutoModelForImageClassification,
    **dict.fromkeys(MASKED, hf.AutoModelForMaskedLM),
}  # fmt: skip


def shaken(module: nn.Module) -> nn.Module:
    """Every parameter drawn, scales and shifts too: untrained, they are 1 and 0 and hide mistakes."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in (p for p in module.parameters() if p.requires_grad):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(0.3 * noise)
    return module.eval()


def theirs_of(kind: str) -> nn.Module:
    """Transformers' model of a family, small."""
    shared = SHARED if kind != "vit" else {}
    config = hf.AutoConfig.for_model(kind, **shared | SIZES[kind])
    config._attn_implementation = "eager"
    return shaken(DOORS.get(kind, hf.AutoModelForCausalLM).from_config(config))


def read_by(kind: str, ids: Tensor) -> dict[str, Tensor]:
    """What a model reads, by the names that transformers gives it."""
    generator = torch.Generator().manual_seed(3)
    sound = (
        len(ids),
        SIZES["whisper"]["num_mel_bins"],
        2 * SIZES["whisper"]["max_source_positions"],
    )
    side = SIZES["vit"]["image_size"]
    drawn = {"input_features": sound, "pixel_values": (len(ids), 3, side, side)}
    return {
        name: torch.randn(drawn[name], generator=generator) if name in drawn else ids
        for name in READS.get(kind, ("input_ids",))
    }


def logits_and_gradient(
    module: nn.Module, read: dict[str, Tensor], mask: Tensor
) -> tuple[Tensor, Tensor]:
    """The logits of real tokens, and the gradient of the embeddings, which all layers reach."""
    theirs = isinstance(module, hf.PreTrainedModel)
    given = {} if mask.all() else {"attention_mask": mask.long() if theirs else mask}
    if theirs and module.config.model_type == "rwkv":
        given["use_cache"] = False  # it is written in place, which has no gradient
    found = module(**read, **given) if theirs else module(*read.values(), **given)
    logits = found.logits if theirs else found
    logits = logits[mask] if logits.ndim == 3 else logits  # of an image there is one row
    noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))
    module.zero_grad(set_to_none=True)
    (logits * noise).sum().backward()
    wanted = [p for p in module.parameters() if p.grad is not None]
    table = next(
        p for p in wanted if (p.ndim == 4 if "pixel_values" in read else p.shape[0] == VOCAB)
    )
    return logits.detach(), table.grad


def greedy(module: nn.Module, ids: Tensor) -> Tensor:
    """The next tokens, with a cache."""
    if isinstance(module, hf.PreTrainedModel):
        options = {
            "max_new_tokens": NEW,
            "do_sample": False,
            "attention_mask": torch.ones_like(ids),
        }
        return module.generate(ids, **options)[:, -NEW:]
    two = hasattr(module, "decode")
    state, start = (
        (Seq2SeqState(module, ids), ids[:, :1] * 0) if two else (CausalState(module), ids)
    )
    return generate(state, start, max_new=NEW, eos=None).tokens


def row_of(kind: str) -> dict:
    """One family."""
    theirs = theirs_of(kind)
    ids = torch.randint(2, VOCAB, (3, LENGTH), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(3, LENGTH, dtype=torch.bool)
    if kind in ALONE:
        ids, mask = ids[:1], mask[:1]
    elif kind not in ("whisper", "vit"):  # their inputs have one length
        mask[0, LENGTH - 4 :] = False
        ids = ids.masked_fill(~mask, SHARED["pad_token_id"])
    with TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = from_pretrained(folder)
        back = Path(folder) / "back"
        save_pretrained(ours, back)
        returned = type(theirs).from_pretrained(back, attn_implementation="eager").eval()
    read = read_by(kind, ids)
    (a, da), (b, db) = (logits_and_gradient(each, read, mask) for each in (theirs, ours))
    row = {
        "family": kind,
        "logits": (a - b).abs().max().item(),
        "of at most": a.abs().max().item(),
        "gradient": (da - db).abs().max().item(),
        "gradient of at most": da.abs().max().item(),
        "there and back": torch.equal(logits_and_gradient(returned, read, mask)[0], a),
    }
    if kind not in NO_TOKENS:
        row["tokens equal"] = torch.equal(greedy(theirs, ids[-1:]), greedy(ours, ids[-1:]))
    return {k: float(f"{v:.2g}") if isinstance(v, float) else v for k, v in row.items()}


def main() -> None:
    """Print and store a row for each family."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=SIZES)
    given = parser.parse_args()
    torch.set_num_threads(1)
    hf.utils.logging.set_verbosity_error()
    rows = []
    for kind in [given.only] if given.only else [kind for kind in SIZES if kind in FAMILIES]:
        rows.append(row_of(kind))
        print(*rows[-1].values(), sep="\t", flush=True)
    if not given.only:
        write_rows("equal_families", WHAT, rows, transformers=hf.__version__)


if __name__ == "__main__":
    main()
