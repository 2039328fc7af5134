"""ALBERT: BERT with a smaller embedding that is projected, and layers that share their parameters.

While training, our residual connections drop out both sublayers' outputs, as ALBERT's own code does;
transformers drops out attention's alone. The released models of version 2 have no dropout.

Source: Lan et al. 2020; transformers' AlbertModel and its heads.
"""

from __future__ import annotations

from typing import Any

from ..bert import Bert, BertConfig
from ..family import Family, Options, Stack, option_error
from . import bert

HEADS = {
    "AlbertModel": None, "AlbertForMaskedLM": "masked_lm",
    "AlbertForSequenceClassification": "classification",
}  # fmt: skip
INNER = (1, 2, 3, 4)  # layers in a group


def read(options: Options) -> BertConfig:
    """Their options in our words."""
    for name in ("embedding_size", "num_hidden_groups"):
        if options[name] is None:  # with which a BertConfig is a BERT's
            raise option_error(name, None, "a number")
    return bert.read_shared(
        options, head=HEADS[options["architectures"]], d_embedding=options["embedding_size"],
        num_groups=options["num_hidden_groups"], group_size=options["inner_group_num"],
        classifier_dropout=options["classifier_dropout_prob"],
    )  # fmt: skip


def write(config: BertConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    rate = config.dropout if config.classifier_dropout is None else config.classifier_dropout
    return bert.write_shared(config, HEADS) | {
        "embedding_size": config.d_embedding, "num_hidden_groups": config.num_groups,
        "inner_group_num": config.group_size, "classifier_dropout_prob": rate,
    }  # fmt: skip


LAYER = {
    "attention.query": "attention.query", "attention.key": "attention.key",
    "attention.value": "attention.value", "attention.output": "attention.dense",
    "residuals.0.norm": "attention.LayerNorm", "feed_forward.up_proj": "ffn",
    "feed_forward.down_proj": "ffn_output", "residuals.1.norm": "full_layer_layer_norm",
}  # fmt: skip
GROUP = {
    f"{number}.{ours}": f"albert_layers.{number}.{theirs}"
    for number in range(max(INNER)) for ours, theirs in LAYER.items()
}  # fmt: skip
FAMILY = Family(
    model_type="albert",
    architectures=tuple(HEADS),
    headless="AlbertModel",
    config=BertConfig,
    build=Bert,
    defaults={
        "vocab_size": 30000, "embedding_size": 128, "hidden_size": 4096, "num_hidden_layers": 12,
        "num_hidden_groups": 1, "num_attention_heads": 64, "intermediate_size": 16384,
        "inner_group_num": 1, "hidden_act": "gelu_new", "max_position_embeddings": 512,
        "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0, "id2label": None,
        "classifier_dropout_prob": 0.1, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    read=read,
    write=write,
    dropout=bert.FAMILY.dropout,
    modules={
        "embedding.token": "albert.embeddings.word_embeddings",
        "embedding.position": "albert.embeddings.position_embeddings",
        "embedding.segment": "albert.embeddings.token_type_embeddings",
        "embedding.norm": "albert.embeddings.LayerNorm",
        "projection": "albert.encoder.embedding_hidden_mapping_in",
        "pooler.dense": "albert.pooler",
        "masked_lm.dense": "predictions.dense",
        "masked_lm.norm": "predictions.LayerNorm",
        "masked_lm.output.weight": "predictions.decoder.weight",
        "masked_lm.output.bias": "predictions.bias",
        "classifier": "classifier",
    },
    stacks=(Stack("layers", "albert.encoder.albert_layer_groups", GROUP),),
    base="albert.",
    fixed={
        "inner_group_num": INNER, "tie_word_embeddings": (True,),
        "position_embedding_type": ("absolute",), "layers_to_keep": ([],), "gap_size": (0,),
        "net_structure_type": (0,), "num_memory_blocks": (0,), "down_scale_factor": (1,),
    },
    aliases={"predictions.decoder.bias": "predictions.bias"},
    leftovers=r"(albert\.)?(pooler\..*|embeddings\.position_ids)|sop_classifier\..*",
)  # fmt: skip
