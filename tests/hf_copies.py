"""Copies of Hugging Face's MarianMT, BART, mBART, GPT-2, Llama, Mistral and MPT, and small random ones."""

from __future__ import annotations

import json
import os
from collections.abc import Set
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers as hf
from safetensors.torch import load_file
from torch import Tensor, nn

from tested_transformer.models.language_model import LanguageModel, LanguageModelConfig
from tested_transformer.models.loading import described, from_pretrained, save_pretrained

hf.utils.logging.disable_progress_bar()
PAD = 1
CLASSES = {
    "marian": (hf.MarianConfig, hf.MarianMTModel, hf.MarianModel),
    "bart": (hf.BartConfig, hf.BartForConditionalGeneration, hf.BartModel),
    "mbart": (hf.MBartConfig, hf.MBartForConditionalGeneration, hf.MBartModel),
}


def small_hf(
    kind: str, attention: str = "eager", *, head: bool = True, **changes: Any
) -> nn.Module:
    """A model of that family with random weights, all sizes different, without dropout."""
    config, *models = CLASSES[kind]
    options = {
        "vocab_size": 17, "d_model": 12, "encoder_layers": 2, "decoder_layers": 3,
        "encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 20,
        "decoder_ffn_dim": 20, "max_position_embeddings": 15, "activation_function": "gelu",
        "scale_embedding": True, "dropout": 0.0, "attention_dropout": 0.0,
        "activation_dropout": 0.0, "pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": 2,
        "decoder_start_token_id": PAD, "forced_eos_token_id": None, "use_cache": False,
    }  # fmt: skip
    model = models[0 if head else 1]
    theirs = model(config(**options | changes, attn_implementation=attention))
    if head:
        generator = torch.Generator().manual_seed(0)
        theirs.final_logits_bias.normal_(generator=generator)  # a buffer of zeros at the start
    return theirs


def loaded(theirs: nn.Module, pad_id: int | None = None) -> nn.Module:
    """Theirs by way of a folder, in their dtype and mode; pad_id: a token that is padding by itself."""
    with TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = from_pretrained(folder)
    if pad_id is not None:
        state, config = ours.state_dict(), replace(ours.config, pad_id=pad_id)
        ours = type(ours)(config).to(theirs.dtype)
        ours.load_state_dict(state)
    return ours.train(theirs.training)


def padded(
    ids: Tensor, padding: str, *, shorter: int = 2, pad_id: int = PAD
) -> tuple[Tensor, Tensor | None]:
    """Sequences of different lengths, padded on the "left" or "right", and their mask; or full, with "none".

    shorter: by so many tokens is each sequence shorter than the one before it.
    """
    if padding == "none":
        return ids, None
    missing, column = shorter * torch.arange(len(ids))[:, None], torch.arange(ids.shape[1])
    mask = column >= missing if padding == "left" else column < ids.shape[1] - missing
    return ids.masked_fill(~mask, pad_id), mask


def assert_read_whole(
    config: dict, count: int, folder: Path, twin: type[nn.Module]
) -> tuple[nn.Module, nn.Module]:
    """A model of that configuration has so many parameters, ours and theirs; both are returned, without numbers."""
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    family, options = described(folder)
    with torch.device("meta"):
        ours = family.build(family.read(family.options(options)))
        theirs = twin(hf.AutoConfig.from_pretrained(folder))
    assert sum(each.numel() for each in ours.parameters()) == count
    assert theirs.num_parameters() == count
    return ours, theirs


# --- There and back -------------------------------------------------------------------------------


def assert_comes_back(theirs: nn.Module, folder: Path, remade: Set[str] = frozenset()) -> nn.Module:
    """Theirs, ours, theirs and ours again: every weight and every option; the last one is returned.

    remade: what their class makes by itself, and no file need have; names on disk may differ then.
    """
    theirs.save_pretrained(folder / "theirs")
    ours = from_pretrained(folder / "theirs")
    save_pretrained(ours, folder / "ours")
    names = [load_file(folder / each / "model.safetensors").keys() for each in ("ours", "theirs")]
    assert names[0] == names[1] or remade
    back, report = type(theirs).from_pretrained(folder / "ours", output_loading_info=True)
    report["missing_keys"] -= remade
    assert not any(report.values()), report
    assert_equal(back.state_dict(), theirs.state_dict())
    assert options_of(back) == options_of(theirs)
    again = from_pretrained(folder / "ours")
    assert again.config == ours.config
    assert_equal(again.state_dict(), ours.state_dict())
    return again


def assert_equal(mine: dict[str, Tensor], yours: dict[str, Tensor]) -> None:
    """Every number of two models, bit by bit."""
    differing = [name for name in mine | yours if not torch.equal(mine[name], yours[name])]
    assert not differing


def options_of(theirs: nn.Module) -> dict[str, Any]:
    """Their configuration, without where it came from; MPT's has a second one inside."""

    def without(config: dict[str, Any]) -> dict[str, Any]:
        kept = {k: v for k, v in config.items() if k not in ("_name_or_path", "dtype")}
        return {k: without(v) if isinstance(v, dict) else v for k, v in kept.items()}

    return without(theirs.config.to_dict())


# --- GPT-2 ----------------------------------------------------------------------------------------


def small_gpt2(pad_id: int | None = PAD, **changes: Any) -> nn.Module:
    """A GPT-2 with random weights, all sizes different, without dropout."""
    options = {
        "vocab_size": 17, "n_positions": 40, "n_embd": 12, "n_layer": 3, "n_head": 3,
        "n_inner": 20, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
        "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": pad_id,
    }  # fmt: skip
    theirs = hf.GPT2LMHeadModel(hf.GPT2Config(**options | changes, attn_implementation="eager"))
    for parameter in theirs.parameters():  # theirs start near zero, where every word is as likely
        nn.init.normal_(parameter, std=0.4)
    return theirs.eval()


# --- Llama, Mistral, MPT --------------------------------------------------------------------------


def small_llama(kind: str = "llama", **changes: Any) -> nn.Module:
    """A Llama or a Mistral with random weights: grouped-query attention, a head size of its own, rotary."""
    config, model = {
        "llama": (hf.LlamaConfig, hf.LlamaForCausalLM),
        "mistral": (hf.MistralConfig, hf.MistralForCausalLM),
    }[kind]
    options = {
        "vocab_size": 17, "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 4, "pad_token_id": PAD,
        "max_position_embeddings": 40, "bos_token_id": 0, "eos_token_id": 2,
        "tie_word_embeddings": False,
    }  # fmt: skip
    theirs = model(config(**options | changes, attn_implementation="eager"))
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.4)
    return theirs.eval()


def small_mpt(**changes: Any) -> nn.Module:
    """An MPT with random weights: ALiBi, no biases."""
    options = {
        "vocab_size": 17, "d_model": 12, "n_heads": 4, "n_layers": 3,
        "max_seq_len": 40, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": PAD,
    }  # fmt: skip
    theirs = hf.MptForCausalLM(hf.MptConfig(**options | changes))
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.4)
    return theirs.eval()


def from_mpt(theirs: nn.Module, pad_id: int | None = None) -> LanguageModel:
    """A copy as our LanguageModel, in their dtype and mode."""
    c, body = theirs.config, theirs.transformer
    ours = LanguageModel(
        LanguageModelConfig(
            c.vocab_size, d_model=c.d_model, num_heads=c.n_heads, num_layers=c.n_layers,
            d_ff=4 * c.d_model, dropout=0.0, activation="gelu", bias=False,
            norm_placement="pre", norm_eps=c.layer_norm_epsilon, positions="alibi",
            scale_embedding=False, pad_id=pad_id,
        )
    ).to(theirs.dtype).train(theirs.training)  # fmt: skip
    pairs = [(ours.embedding.table, body.wte), (ours.norm, body.norm_f)]
    for layer, twin in zip(ours.layers, body.blocks, strict=True):
        norms = [twin.norm_1, twin.norm_2]
        pairs += zip([each.norm for each in layer.residuals], norms, strict=True)
        pairs.append((layer.attention.output, twin.attn.out_proj))
        pairs += [(layer.feed_forward.up_proj, twin.ffn.up_proj)]
        pairs += [(layer.feed_forward.down_proj, twin.ffn.down_proj)]
        heads = [layer.attention.query, layer.attention.key, layer.attention.value]
        with torch.no_grad():
            for linear, weight in zip(heads, twin.attn.Wqkv.weight.chunk(3), strict=True):
                linear.weight.copy_(weight)
    return _copied(ours, pairs)


@torch.no_grad()
def _copied(ours: nn.Module, pairs: list[tuple[nn.Module, nn.Module]]) -> nn.Module:
    """Our model with the weights of theirs; no module of these families has a bias."""
    for mine, yours in pairs:
        assert getattr(mine, "bias", None) is None
        mine.weight.copy_(yours.weight)
    return ours
