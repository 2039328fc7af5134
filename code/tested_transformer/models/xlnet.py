"""XLNet: a permutation language model, which predicts tokens in any order from both directions."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..bounds import AtLeast, AtMost, Below, PositiveFloat, PositiveInt
from ..layers.blocks import make_feed_forward, make_residual
from ..layers.config import BlockConfig
from ..layers.multi_head import head_size
from ..layers.relative_attention import distance_encodings
from ..layers.two_stream_attention import TwoStreamAttention
from ..shapes import checked

__all__ = ["XLNet", "XLNetConfig"]

RealTokens = Annotated[Bool[Tensor, "B L"] | Int[Tensor, "B L"], AtLeast(0), AtMost(1)]
Hidden = Annotated[Bool[Tensor, "B L L"] | Float[Tensor, "B L L"], AtLeast(0), AtMost(1)]
Mapping = Annotated[Float[Tensor, "B M L"], AtLeast(0), AtMost(1)]


@dataclass(frozen=True)
class XLNetConfig(BlockConfig):
    """Every size and choice of an XLNet. Without arguments: XLNet large.

    Raises: TypeError or ValueError that name the field.
    Source: Yang et al. 2019, appendix A.4.1.
    """

    vocab_size: PositiveInt = 32000
    _: KW_ONLY
    d_model: PositiveInt = 1024
    num_heads: PositiveInt = 16
    num_layers: PositiveInt = 24
    activation: str = "gelu"
    norm_placement: Literal["post"] = "post"
    norm_eps: PositiveFloat = 1e-12
    positions: Literal["none"] = "none"  # none but the distances in every layer
    scale_embedding: Literal[False] = False
    tied_output: Literal[True] = True
    pad_id: None = None
    head: bool = True  # False: no output layer, the model returns the last hidden states

    def __post_init__(self) -> None:
        super().__post_init__()
        head_size(self.d_model, self.num_heads, None)  # raises if there is none


class XLNet(nn.Module):
    """Read a text in both directions, or predict the tokens of `target_mapping` in an order of their own.

    Called as in transformers: a 1 or True in perm_mask at [b, i, j] says that token i may *not* attend to token j, the
    opposite of all masks in this package; of the masks that `permutation_masks` makes, it is
    ~query_mask[:, 0]. Without target_mapping the content stream is what comes out, and a token attends
    to itself whatever the masks say.

    A target whose keys are all masked gets 0 from attention. Padding may stand anywhere.

    Shapes: input_ids, attention_mask (True or 1: no padding) and token_type_ids (B, L), perm_mask (B, L, L),
        target_mapping (B, M, L) -> logits (B, M, V) of the targets, without target_mapping (B, L, V) of all
        tokens; without a head the last hidden states.
    Raises: TypeError or ValueError that name the argument.
    Source: Yang et al. 2019, section 2.

    >>> config = XLNetConfig(9, d_model=4, num_heads=2, num_layers=1)
    >>> tuple(XLNet(config)(torch.tensor([[3, 4, 5]])).shape)
    (1, 3, 9)
    """

    @checked
    def __init__(self, config: XLNetConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.mask_embedding = nn.Parameter(torch.zeros(1, 1, config.d_model))
        self.layers = nn.ModuleList(TwoStreamLayer(config) for _ in range(config.num_layers))
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.d_model, config.vocab_size) if config.head else None
        nn.init.normal_(self.embedding.weight, std=0.02)
        nn.init.normal_(self.mask_embedding, std=0.02)
        if config.head:
            self.output.weight = self.embedding.weight
            nn.init.zeros_(self.output.bias)

    @checked(like="self.embedding.weight", any_dtype="perm_mask target_mapping")
    def forward(
        self,
        input_ids: Annotated[Int[Tensor, "B L"], AtLeast(0), Below("self.config.vocab_size")],
        attention_mask: RealTokens | None = None,
        perm_mask: Hidden | None = None,
        target_mapping: Mapping | None = None,
        token_type_ids: Int[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B N V"]:
        """The logits of the targets, or of all tokens."""
        content, targets = self.dropout(self.embedding(input_ids)), None  # B L D
        length, width = content.shape[1:]
        if target_mapping is not None:
            target_mapping = target_mapping.to(content)
            targets = self.mask_embedding.expand(*target_mapping.shape[:2], -1)  # B M D
            targets = self.dropout(targets)
        content_mask, query_mask = stream_masks(length, attention_mask, perm_mask)
        encodings = (
            distance_encodings(length, length, width, like=content) if length else content[0]
        )
        options = {
            "encodings": self.dropout(encodings), "content_mask": content_mask,
            "query_mask": query_mask, "mapping": target_mapping,
            "other_segment": None if token_type_ids is None
            else token_type_ids[:, :, None] != token_type_ids[:, None, :],
        }  # fmt: skip
        for layer in self.layers:
            content, targets = layer(content, targets, **options)
        hidden = self.dropout(content if targets is None else targets)
        return hidden if self.output is None else self.output(hidden)


class TwoStreamLayer(nn.Module):
    """Two-stream attention, then the feed-forward network; both streams share all parameters.

    Shapes: content (B, L, D), targets (B, M, D) or None -> the same.
    Source: as XLNet.
    """

    def __init__(self, config: XLNetConfig) -> None:
        super().__init__()
        self.attention = TwoStreamAttention(
            config.d_model,
            config.num_heads,
            d_head=config.d_model // config.num_heads,
            dropout=config.dropout,
        )
        self.feed_forward = make_feed_forward(config)
        self.residuals = nn.ModuleList(make_residual(config, 1.0) for _ in range(2))

    def forward(
        self,
        content: Float[Tensor, "B L D"],
        targets: Float[Tensor, "B M D"] | None,
        **options: Tensor | None,
    ) -> tuple[Float[Tensor, "B L D"], Float[Tensor, "B M D"] | None]:
        """One layer."""
        found = self.attention(content, targets, **options)
        streams = [
            None
            if x is None
            else self.residuals[1](self.residuals[0].add(x, new), self.feed_forward)
            for x, new in zip((content, targets), found, strict=True)
        ]
        return streams[0], streams[1]


def stream_masks(
    length: int, attention_mask: Tensor | None, perm_mask: Tensor | None
) -> tuple[Bool[Tensor, "#B 1 #L L"] | None, Bool[Tensor, "#B 1 #L L"] | None]:
    """The masks of both streams, True where attention is allowed: in the content stream to oneself, too."""
    if attention_mask is None and perm_mask is None:
        return None, None
    query = True if perm_mask is None else ~perm_mask.bool()[:, None]  # B 1 L L
    if attention_mask is not None:
        query = query & attention_mask.bool()[:, None, None, :]  # B 1 #L L
    return query | torch.eye(length, dtype=torch.bool, device=query.device), query
