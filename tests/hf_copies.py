"""Copies of Hugging Face's MarianMT, BART, mBART, GPT-2, Llama, Mistral and MPT, and small random ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers as hf
from torch import Tensor, nn

from tested_transformer.models.language_model import LanguageModel, LanguageModelConfig
from tested_transformer.models.loading import from_pretrained
from tested_transformer.models.transformer import Transformer, TransformerConfig

hf.utils.logging.disable_progress_bar()
PAD = 1
CLASSES = {
    "marian": (hf.MarianConfig, hf.MarianMTModel),
    "bart": (hf.BartConfig, hf.BartForConditionalGeneration),
    "mbart": (hf.MBartConfig, hf.MBartForConditionalGeneration),
}
WHAT_THEY_ARE = {
    "marian": {"position_layout": "halves"},
    "bart": {"positions": "learned", "embedding_norm": True},
    "mbart": {"positions": "learned", "embedding_norm": True, "norm_placement": "pre"},
}
OFFSET = 2  # BART's tables of positions begin with two rows that no token uses


def small_hf(kind: str, attention: str = "eager", **changes: Any) -> nn.Module:
    """A model of that family with random weights, all sizes different, without dropout."""
    config, model = CLASSES[kind]
    options = {
        "vocab_size": 17, "d_model": 12, "encoder_layers": 2, "decoder_layers": 3,
        "encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 20,
        "decoder_ffn_dim": 20, "max_position_embeddings": 15, "activation_function": "gelu",
        "scale_embedding": True, "dropout": 0.0, "attention_dropout": 0.0,
        "activation_dropout": 0.0, "pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": 2,
        "decoder_start_token_id": PAD, "forced_eos_token_id": None, "use_cache": False,
    }  # fmt: skip
    theirs = model(config(**options | changes, attn_implementation=attention))
    theirs.final_logits_bias.normal_()  # a buffer of zeros at the start
    return theirs


def config_of_hf(theirs: nn.Module) -> TransformerConfig:
    """What their configuration says, in our words."""
    config, kind = theirs.config, theirs.config.model_type
    names = {"gelu": "gelu", "relu": "relu", "swish": "silu", "silu": "silu", "gelu_new": "gelu_tanh"}  # fmt: skip
    options = WHAT_THEY_ARE[kind]
    return TransformerConfig(
        source_vocab=config.vocab_size, d_model=config.d_model,
        num_heads=config.encoder_attention_heads, num_encoder_layers=config.encoder_layers,
        num_decoder_layers=config.decoder_layers, d_ff=config.encoder_ffn_dim, dropout=0.0,
        activation=names[config.activation_function], scale_embedding=config.scale_embedding,
        max_length=config.max_position_embeddings if "positions" in options else None,
        output_bias=True, pad_id=config.pad_token_id, **options,
    )  # fmt: skip


def from_hf(theirs: nn.Module) -> Transformer:
    """A copy as our Transformer, in their dtype and mode."""
    ours = Transformer(config_of_hf(theirs)).to(theirs.dtype).train(theirs.training)
    with torch.no_grad():
        for mine, yours in hf_pairs(ours, theirs):
            mine.copy_(yours)
        ours.output.bias.copy_(theirs.final_logits_bias[0])
    return ours


def hf_pairs(ours: Transformer, theirs: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Every parameter beside its twin; the output's bias is a buffer in theirs."""
    yield ours.source_embedding.table.weight, theirs.model.shared.weight
    for stack in ("encoder", "decoder"):
        mine, yours = getattr(ours, stack), getattr(theirs.model, stack)
        embedding = ours.source_embedding if stack == "encoder" else ours.target_embedding
        if ours.config.positions == "learned":
            yield embedding.positions.weight, yours.embed_positions.weight[OFFSET:]
        if ours.config.embedding_norm:
            yield from _both(embedding.norm, yours.layernorm_embedding)
        for layer, twin in zip(mine.layers, yours.layers, strict=True):
            yield from _layer(layer, twin)
        if mine.norm is not None:
            yield from _both(mine.norm, yours.layer_norm)


def _layer(layer: nn.Module, twin: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    attentions = [(layer.attention, twin.self_attn)]
    norms = [twin.self_attn_layer_norm, twin.final_layer_norm]
    if hasattr(layer, "cross_attention"):
        attentions.append((layer.cross_attention, twin.encoder_attn))
        norms.insert(1, twin.encoder_attn_layer_norm)
    for mine, yours in attentions:
        for part, name in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "out")):
            yield from _both(getattr(mine, part), getattr(yours, f"{name}_proj"))
    yield from _both(layer.feed_forward.up_proj, twin.fc1)
    yield from _both(layer.feed_forward.down_proj, twin.fc2)
    for residual, norm in zip(layer.residuals, norms, strict=True):
        yield from _both(residual.norm, norm)


def _both(mine: nn.Module, yours: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    yield mine.weight, yours.weight
    yield mine.bias, yours.bias


# --- Language models ------------------------------------------------------------------------------


def loaded(theirs: nn.Module, pad_id: int | None = None) -> LanguageModel:
    """Theirs by way of a folder, in their dtype and mode; pad_id: a token that is padding by itself."""
    with TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = from_pretrained(folder)
    if pad_id is not None:
        state, config = ours.state_dict(), replace(ours.config, pad_id=pad_id)
        ours = LanguageModel(config).to(theirs.dtype)
        ours.load_state_dict(state)
    return ours.train(theirs.training)


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
