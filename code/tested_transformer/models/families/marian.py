"""Marian: the Transformer of 2017 with sines and cosines in two halves, as the translators of OPUS-MT.

Its output layer has a constant beside it, `final_logits_bias`. Source and target have one embedding
matrix, or one each (share_encoder_decoder_embeddings).

Source: Junczys-Dowmunt et al. 2018; Tiedemann and Thottingal 2020; transformers' MarianMTModel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..family import Options, option_error
from ..transformer import TransformerConfig
from . import bart


def read(options: Options) -> TransformerConfig:
    """Their options in our words."""
    vocab, of_target = options["vocab_size"], options["decoder_vocab_size"]
    if not options["share_encoder_decoder_embeddings"]:
        own = {"target_vocab": vocab if of_target is None else of_target}
        return bart.read_shared(options, FAMILY, **own, position_layout="halves")
    if of_target not in (None, vocab):
        wanted = f"vocab_size = {vocab}, with share_encoder_decoder_embeddings"
        raise option_error("decoder_vocab_size", of_target, wanted)
    if not options["tie_word_embeddings"]:
        wanted = "True, with share_encoder_decoder_embeddings"
        raise option_error("tie_word_embeddings", False, wanted)
    return bart.read_shared(options, FAMILY, position_layout="halves")


def write(config: TransformerConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    shared = {"share_encoder_decoder_embeddings": config.target_vocab is None}
    return bart.write_shared(config, FAMILY) | shared | {"decoder_vocab_size": config.output_vocab}


OWN = {
    "vocab_size": 58101, "decoder_vocab_size": None, "share_encoder_decoder_embeddings": True,
}  # fmt: skip
OLD = {"normalize_embedding": (False,), "static_position_embeddings": (True,)}
NOT_FIXED = ("tie_word_embeddings", "extra_pos_embeddings")
FAMILY = replace(
    bart.FAMILY,
    model_type="marian",
    architectures=("MarianMTModel", "MarianModel"),
    headless="MarianModel",
    defaults=dict(bart.FAMILY.defaults) | OWN,
    read=read,
    write=write,
    fixed={n: v for n, v in bart.FAMILY.fixed.items() if n not in NOT_FIXED} | OLD,
    ignored=bart.FAMILY.ignored | {"extra_pos_embeddings"},
    modules=bart.MODULES | {"source_embedding.table": "model.encoder.embed_tokens"},
    aliases={"model.shared.weight": "model.encoder.embed_tokens.weight"},
    leftovers=r"(model\.)?(en|de)coder\.(version|embed_positions\.weight)",  # the sinusoids
)
