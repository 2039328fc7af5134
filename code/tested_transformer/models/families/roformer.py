"""RoFormer: BERT with rotary positions, interleaved, over all features of a head; no pooler.

rotary_value, which rotates the values too, is refused.

Source: Su et al. 2021; transformers' RoFormerForMaskedLM and RoFormerModel.
"""

from __future__ import annotations

from typing import Any

from ..family import Family, Options, Stack
from ..roformer import RoFormer, RoFormerConfig
from . import bert

HEADS = {"RoFormerForMaskedLM": "masked_lm", "RoFormerModel": None}


def read(options: Options) -> RoFormerConfig:
    """Their options in our words."""
    given, hidden = options["embedding_size"], options["hidden_size"]
    return bert.read_shared(
        {**options, "id2label": None}, RoFormerConfig, head=HEADS[options["architectures"]],
        d_embedding=None if given == hidden else given,
    )  # fmt: skip


def write(config: RoFormerConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    d_embedding = config.d_model if config.d_embedding is None else config.d_embedding
    return bert.write_shared(config, HEADS) | {"embedding_size": d_embedding}


FAMILY = Family(
    model_type="roformer",
    architectures=tuple(HEADS),
    headless="RoFormerModel",
    config=RoFormerConfig,
    build=RoFormer,
    defaults={
        "vocab_size": 50000, "embedding_size": None, "hidden_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 12, "intermediate_size": 3072, "hidden_act": "gelu",
        "max_position_embeddings": 1536, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
        "pad_token_id": 0, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    },
    read=read,
    write=write,
    dropout=bert.FAMILY.dropout,
    modules={
        "embedding.token": "roformer.embeddings.word_embeddings",
        "embedding.segment": "roformer.embeddings.token_type_embeddings",
        "embedding.norm": "roformer.embeddings.LayerNorm",
        "projection": "roformer.embeddings_project",
        "masked_lm.dense": "cls.predictions.transform.dense",
        "masked_lm.norm": "cls.predictions.transform.LayerNorm",
        "masked_lm.output.weight": "cls.predictions.decoder.weight",
        "masked_lm.output.bias": "cls.predictions.bias",
    },
    stacks=(Stack("layers", "roformer.encoder.layer", bert.LAYER),),
    base="roformer.",
    fixed={"is_decoder": (False,), "tie_word_embeddings": (True,), "rotary_value": (False,)},
    ignored=bert.FAMILY.ignored,
    aliases=bert.FAMILY.aliases,
    leftovers=r"(roformer\.)?(encoder\.embed_positions\.weight|pooler\..*)",  # cosines and sines
)  # fmt: skip
