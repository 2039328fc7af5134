"""RoFormer: BERT without position embeddings, whose queries and keys rotate in every layer."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal

from jaxtyping import Float, Int
from torch import Tensor

from ..bounds import AtLeast, Below, Divides, PositiveFloat, PositiveInt, Probability  # noqa: F401
from ..layers.blocks import EncoderLayer
from ..positions.protocol import PositionScheme
from ..positions.rotary import RotaryPositions
from ..shapes import checked
from .bert import Bert, BertConfig, Head, Positions, RealTokens, Segments  # noqa: F401

__all__ = ["RoFormer", "RoFormerConfig"]


@dataclass(frozen=True)
class RoFormerConfig(BertConfig):
    """Every size and choice of a RoFormer. Without arguments: the Chinese base model.

    Raises: TypeError or ValueError that name the field.
    Source: Su et al. 2021, section 4; its Chinese model: section 4.5.
    """

    vocab_size: PositiveInt = 50_000
    _: KW_ONLY
    positions: Literal["rotary"] = "rotary"
    position_layout: Literal["interleaved"] = "interleaved"
    max_length: PositiveInt = 1536  # of the texts in training; longer ones are possible
    head: Literal["masked_lm"] | None = None


class RoFormer(Bert):
    """A `Bert` with rotary positions and no pooler, called in the same way.

    Only differences of positions count, so that padding on either side leaves a text's numbers as they are.

    Shapes: as Bert.
    Raises: TypeError or ValueError that name the argument.
    Source: Su et al. 2021, section 3.2 and figure 1; transformers' RoFormerModel.
    """

    @checked
    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__(config)
        self.embedding.position = PositionScheme()  # which adds nothing to the embeddings
        self.pooler = None
        rotary = RotaryPositions(config.d_model // config.num_heads)
        for module in self.modules():
            if isinstance(module, EncoderLayer):
                module.attention.positions = rotary

    @checked(like="self.embedding.token.weight")
    def encode(
        self,
        input_ids: Annotated[Int[Tensor, "B L"], AtLeast(0), Below("self.config.vocab_size")],
        attention_mask: RealTokens | None = None,
        token_type_ids: Segments | None = None,
        position_ids: Annotated[Int[Tensor, "#B L"], AtLeast(0)] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """The last hidden states, whatever the head."""
        x = self.embedding(input_ids, token_type_ids)  # B L E
        x = x if self.projection is None else self.projection(x)  # B L D
        mask = None if attention_mask is None else attention_mask[:, None, None, :].bool()
        hidden, _ = self.layers(x, mask=mask, position_ids=position_ids)
        return hidden
