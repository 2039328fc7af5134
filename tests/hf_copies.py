"""Copies of Hugging Face's MarianMT, BART, mBART and GPT-2, weight by weight, and small random ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers as hf
from torch import Tensor, nn

from tested_transformer.models.language_model import LanguageModel, LanguageModelConfig
from tested_transformer.models.transformer import Transformer, TransformerConfig

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


def from_gpt2(theirs: nn.Module) -> LanguageModel:
    """A copy as our LanguageModel, in their dtype and mode. Their matrices are stored transposed."""
    c, body = theirs.config, theirs.transformer
    ours = LanguageModel(
        LanguageModelConfig(
            c.vocab_size, d_model=c.n_embd, num_heads=c.n_head, num_layers=c.n_layer,
            d_ff=c.n_inner, dropout=0.0, activation="gelu_tanh",
            norm_placement="pre", norm_eps=c.layer_norm_epsilon, positions="learned",
            max_length=c.n_positions, scale_embedding=False, pad_id=c.pad_token_id,
        )
    ).to(theirs.dtype).train(theirs.training)  # fmt: skip
    with torch.no_grad():
        ours.embedding.table.weight.copy_(body.wte.weight)
        ours.embedding.positions.weight.copy_(body.wpe.weight)
        pairs = [(ours.norm, body.ln_f)]
        for layer, twin in zip(ours.layers, body.h, strict=True):
            pairs += zip(
                [each.norm for each in layer.residuals], [twin.ln_1, twin.ln_2], strict=True
            )
            heads = [layer.attention.query, layer.attention.key, layer.attention.value]
            weights, biases = twin.attn.c_attn.weight.chunk(3, 1), twin.attn.c_attn.bias.chunk(3)
            for linear, weight, bias in zip(heads, weights, biases, strict=True):
                linear.weight.copy_(weight.T)
                linear.bias.copy_(bias)
            for linear, conv in (
                (layer.attention.output, twin.attn.c_proj),
                (layer.feed_forward.up_proj, twin.mlp.c_fc),
                (layer.feed_forward.down_proj, twin.mlp.c_proj),
            ):
                linear.weight.copy_(conv.weight.T)
                linear.bias.copy_(conv.bias)
        for mine, yours in pairs:
            mine.weight.copy_(yours.weight)
            mine.bias.copy_(yours.bias)
    return ours
