"""BERT: post-norm, learned positions, segments, exact GELU; the output layer is the embedding matrix.

Source: Devlin et al. 2019; transformers' BertModel and its heads.
"""

from __future__ import annotations

from typing import Any

from ..bert import Bert, BertConfig
from ..family import Family, Options, Stack, name_of, named
from .gpt2 import ACTIVATIONS

HEADS = {
    "BertModel": None, "BertForMaskedLM": "masked_lm", "BertForPreTraining": "pretraining",
    "BertForNextSentencePrediction": "next_sentence",
    "BertForSequenceClassification": "classification",
}  # fmt: skip


def read(options: Options) -> BertConfig:
    """Their options in our words."""
    head = HEADS[options["architectures"]]
    return read_shared(options, head=head, classifier_dropout=options["classifier_dropout"])


def read_shared(options: Options, kind: type[BertConfig] = BertConfig, **own: Any) -> BertConfig:
    """What BERT, ALBERT and RoFormer have in common; own: the rest of the configuration."""
    labels = options["id2label"]
    return kind(
        options["vocab_size"], d_model=options["hidden_size"], d_ff=options["intermediate_size"],
        num_heads=options["num_attention_heads"], num_layers=options["num_hidden_layers"],
        dropout=options["hidden_dropout_prob"], norm_eps=options["layer_norm_eps"],
        activation=named("hidden_act", options["hidden_act"], ACTIVATIONS),
        max_length=options["max_position_embeddings"], num_segments=options["type_vocab_size"],
        pad_id=options["pad_token_id"], num_labels=2 if labels is None else len(labels), **own,
    )  # fmt: skip


def write(config: BertConfig) -> dict[str, Any]:
    """Our configuration in their words."""
    return write_shared(config, HEADS) | {"classifier_dropout": config.classifier_dropout}


def write_shared(config: BertConfig, heads: dict[str, str | None]) -> dict[str, Any]:
    """What BERT, ALBERT and RoFormer have in common."""
    names = [f"LABEL_{number}" for number in range(config.num_labels)]
    return {
        "architectures": [name for name, head in heads.items() if head == config.head],
        "vocab_size": config.vocab_size, "hidden_size": config.d_model,
        "intermediate_size": config.d_ff, "num_attention_heads": config.num_heads,
        "num_hidden_layers": config.num_layers, "hidden_act": name_of(config.activation, ACTIVATIONS),
        "max_position_embeddings": config.max_length, "type_vocab_size": config.num_segments,
        "layer_norm_eps": config.norm_eps, "pad_token_id": config.pad_id,
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "hidden_dropout_prob": config.dropout,
    }  # fmt: skip


LAYER = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "residuals.0.norm": "attention.output.LayerNorm",
    "feed_forward.up_proj": "intermediate.dense",
    "feed_forward.down_proj": "output.dense",
    "residuals.1.norm": "output.LayerNorm",
}
FAMILY = Family(
    model_type="bert",
    architectures=tuple(HEADS),
    headless="BertModel",
    config=BertConfig,
    build=Bert,
    defaults={
        "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "hidden_act": "gelu", "max_position_embeddings": 512,
        "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0, "id2label": None,
        "classifier_dropout": None, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    },
    read=read,
    write=write,
    dropout={
        "hidden_dropout_prob": "embedding residual", "attention_probs_dropout_prob": "attention",
    },
    modules={
        "embedding.token": "bert.embeddings.word_embeddings",
        "embedding.position": "bert.embeddings.position_embeddings",
        "embedding.segment": "bert.embeddings.token_type_embeddings",
        "embedding.norm": "bert.embeddings.LayerNorm",
        "pooler.dense": "bert.pooler.dense",
        "masked_lm.dense": "cls.predictions.transform.dense",
        "masked_lm.norm": "cls.predictions.transform.LayerNorm",
        "masked_lm.output.weight": "cls.predictions.decoder.weight",
        "masked_lm.output.bias": "cls.predictions.bias",
        "next_sentence": "cls.seq_relationship",
        "classifier": "classifier",
    },
    stacks=(Stack("layers", "bert.encoder.layer", LAYER),),
    base="bert.",
    fixed={
        "is_decoder": (False,), "tie_word_embeddings": (True,),
        "position_embedding_type": ("absolute",), "pooler_type": ("first_token_transform",),
    },
    ignored=frozenset(  # of a pooler that no released model has; how to save memory in training
        "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers "
        "pooler_size_per_head gradient_checkpointing".split()
    ),
    aliases={"cls.predictions.decoder.bias": "cls.predictions.bias"},
    renamed={r"LayerNorm\.gamma$": "LayerNorm.weight", r"LayerNorm\.beta$": "LayerNorm.bias"},
    leftovers=r"(bert\.)?(pooler\..*|embeddings\.position_ids)|cls\.seq_relationship\..*",
)  # fmt: skip
