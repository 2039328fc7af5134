"""BERT and ALBERT: encoders that read a whole text at once, and the heads that turn vectors into logits."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal, NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..bounds import AtLeast, AtMost, Below, Divides, PositiveFloat, PositiveInt, Probability
from ..errors import argument_error
from ..layers.blocks import EncoderLayer, init_linear_layers, make_stack
from ..layers.config import BlockConfig
from ..layers.feed_forward import ACTIVATIONS
from ..layers.norms import LayerNorm
from ..layers.pooler import Pooler
from ..layers.segmented_embedding import SegmentedEmbedding
from ..layers.shared_stack import SharedStack
from ..layers.stack import Stack
from ..shapes import checked

__all__ = ["Bert", "BertConfig", "MaskedLMHead", "PreTrainingLogits"]

Head = Literal["masked_lm", "next_sentence", "pretraining", "classification"]
RealTokens = Annotated[Bool[Tensor, "B L"] | Int[Tensor, "B L"], AtLeast(0), AtMost(1)]
Segments = Annotated[Int[Tensor, "B L"], AtLeast(0), Below("self.config.num_segments")]
Positions = Annotated[Int[Tensor, "#B L"], AtLeast(0), Below("self.config.max_length")]

# --- Configuration --------------------------------------------------------------------------------


@dataclass(frozen=True)
class BertConfig(BlockConfig):
    """Every size and choice of a BERT. Without arguments: BERT base, uncased.

    ALBERT adds an embedding of d_embedding features with a projection to d_model, and layers that share
    their parameters: num_groups groups of group_size layers, each of which runs num_layers / num_groups
    times. pad_id: the token whose embedding is zero and gets no gradient; padding is masked by
    attention_mask alone.

    Raises: TypeError or ValueError that name the field.
    Source: Devlin et al. 2019, section 3; Lan et al. 2020 (ALBERT), section 3.1.
    """

    vocab_size: PositiveInt = 30522
    _: KW_ONLY
    d_model: PositiveInt = 768
    num_heads: PositiveInt = 12
    num_layers: PositiveInt = 12
    activation: str = "gelu"
    norm_placement: Literal["post"] = "post"
    norm_eps: PositiveFloat = 1e-12
    positions: Literal["learned"] = "learned"
    max_length: PositiveInt = 512
    scale_embedding: Literal[False] = False
    tied_output: Literal[True] = True
    pad_id: Annotated[int, AtLeast(0), Below("vocab_size")] | None = 0
    num_segments: PositiveInt = 2
    d_embedding: PositiveInt | None = None  # None: d_model, and no projection
    num_groups: Annotated[int, AtLeast(1), Divides("num_layers")] | None = None  # None: no sharing
    group_size: PositiveInt = 1
    head: Head | None = None
    num_labels: PositiveInt = 2  # of the head for classification
    classifier_dropout: Probability | None = None  # before that head; None: dropout

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_groups is None and self.group_size != 1:
            raise argument_error(ValueError, "group_size", self.group_size, "1, without num_groups")


# --- Heads ----------------------------------------------------------------------------------------


class MaskedLMHead(nn.Module):
    """Logits of the tokens under the masks: a layer, a norm, then the embedding matrix and a bias.

    Shapes: hidden (B, L, D) -> (B, L, V).
    Raises: TypeError or ValueError that name the argument.
    Source: google-research/bert, run_pretraining.py, get_masked_lm_output.
    """

    @checked
    def __init__(self, config: BertConfig, table: nn.Embedding) -> None:
        super().__init__()
        width = table.embedding_dim
        self.dense = nn.Linear(config.d_model, width)
        self.activation = ACTIVATIONS[config.activation]
        self.norm = LayerNorm(width, eps=config.norm_eps)
        self.output = nn.Linear(width, config.vocab_size)
        init_linear_layers(self, config.norm_placement, 1.0)
        self.output.weight = table.weight

    @checked(like="self.dense.weight", D="self.dense.in_features")
    def forward(self, hidden: Float[Tensor, "B L D"]) -> Float[Tensor, "B L V"]:
        """The logits of every position, masked or not."""
        x = self.norm(self.activation(self.dense(hidden)))  # B L E
        return self.output(x)  # B L V


class PreTrainingLogits(NamedTuple):
    """What the two tasks of pretraining ask for: tokens (B, L, V), and next_sentence (B, 2)."""

    tokens: Tensor
    next_sentence: Tensor


# --- The model ------------------------------------------------------------------------------------


class Bert(nn.Module):
    """Read a text in both directions: every token attends to every other one that is no padding.

    Without a head it returns the last hidden states; `model.pooler(hidden)` is the text's vector. With a
    head it returns logits: of each token ("masked_lm"), of "is next" (label 0) and "is random" (label
    1; "next_sentence"), of both ("pretraining"), or of the labels ("classification").

    As in transformers, positions are 0 ... L - 1 whatever is padding, and without token_type_ids all
    tokens are in segment 0. So pad on the right: on the left a text would need position_ids of its own,
    and its vector, that of the first token, would be padding's.

    Shapes: input_ids, attention_mask (True or 1: no padding), token_type_ids and position_ids (B, L) ->
        (B, L, D), (B, L, V), (B, 2), `PreTrainingLogits` or (B, num_labels), by the head.
    Raises: TypeError or ValueError that name the argument.
    Source: Devlin et al. 2019, section 3; Lan et al. 2020, section 3.1.

    >>> import torch
    >>> config = BertConfig(9, d_model=4, num_heads=2, num_layers=1, max_length=5, head="masked_lm")
    >>> tuple(Bert(config)(torch.tensor([[3, 4, 5]])).shape)
    (1, 3, 9)
    """

    @checked
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config, head = config, config.head
        width = config.d_model if config.d_embedding is None else config.d_embedding
        self.embedding = SegmentedEmbedding(
            config.vocab_size, width, max_length=config.max_length, eps=config.norm_eps,
            num_segments=config.num_segments, padding_idx=config.pad_id, dropout=config.dropout,
        )  # fmt: skip
        self.projection = None if config.d_embedding is None else nn.Linear(width, config.d_model)
        self.layers = make_layers(config)
        self.pooler = None if head == "masked_lm" else Pooler(config.d_model)
        asked = head in ("next_sentence", "pretraining")
        self.next_sentence = nn.Linear(config.d_model, 2) if asked else None
        asked = head == "classification"
        rate = config.dropout if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = nn.Dropout(rate) if asked else None
        self.classifier = nn.Linear(config.d_model, config.num_labels) if asked else None
        init_linear_layers(self, config.norm_placement, 1.0)
        asked = head in ("masked_lm", "pretraining")
        self.masked_lm = MaskedLMHead(config, self.embedding.token) if asked else None

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Float[Tensor, "B L N"] | Float[Tensor, "B N"] | PreTrainingLogits:
        """The last hidden states, or the logits of the head."""
        return self.logits(self.encode(input_ids, attention_mask, token_type_ids, position_ids))

    @checked(like="self.embedding.token.weight")
    def encode(
        self,
        input_ids: Annotated[Int[Tensor, "B L"], AtLeast(0), Below("self.config.vocab_size")],
        attention_mask: RealTokens | None = None,
        token_type_ids: Segments | None = None,
        position_ids: Positions | None = None,
    ) -> Float[Tensor, "B L D"]:
        """The last hidden states, whatever the head."""
        x = self.embedding(input_ids, token_type_ids, position_ids)  # B L E
        x = x if self.projection is None else self.projection(x)  # B L D
        mask = None if attention_mask is None else attention_mask[:, None, None, :].bool()
        hidden, _ = self.layers(x, mask=mask)
        return hidden

    @checked(like="self.embedding.token.weight", D="self.config.d_model")
    def logits(
        self, hidden: Float[Tensor, "B L D"]
    ) -> Float[Tensor, "B L N"] | Float[Tensor, "B N"] | PreTrainingLogits:
        """What the head makes of the last hidden states; these themselves without a head."""
        head = self.config.head
        if head is None:
            return hidden
        if head == "masked_lm":
            return self.masked_lm(hidden)
        pooled = self.pooler(hidden)  # B D
        if head == "classification":
            return self.classifier(self.dropout(pooled))
        scores = self.next_sentence(pooled)  # B 2
        return (
            scores if head == "next_sentence" else PreTrainingLogits(self.masked_lm(hidden), scores)
        )


def make_layers(config: BertConfig) -> Stack:
    """The encoder layers, each with parameters of its own, or in groups that share them."""
    if config.num_groups is None:
        return make_stack(config, (EncoderLayer(config) for _ in range(config.num_layers)))
    groups = [
        nn.ModuleList(EncoderLayer(config) for _ in range(config.group_size))
        for _ in range(config.num_groups)
    ]
    return SharedStack(groups, repeats=config.num_layers // config.num_groups)
