"""Latent attention that reads a few keys per query, those that a lightning indexer scores highest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..bounds import PositiveInt
from ..errors import argument_error
from ..mixers.indexed_attention import indexed_attention, masked_indexed_attention
from ..positions.protocol import PositionScheme
from ..positions.rotary import RotaryPositions
from ..shapes import check_fields, checked
from .cache import AttentionCache
from .latent_attention import LatentAttention
from .multi_head import concat_heads, split_heads
from .norms import LayerNorm

__all__ = ["IndexedLatentAttention", "IndexerConfig", "LightningIndexer"]

IndexInputs = tuple[
    Float[Tensor, "B I L e"], Float[Tensor, "B 1 L e"], Float[Tensor, "B I L"]
]  # queries, keys, weights


@dataclass(frozen=True, kw_only=True)
class IndexerConfig:
    """The sizes of an indexer, and how many keys it selects.

    layout: which features its rotation pairs. DeepSeek-V3.2 has "halves" here, beside an attention of
    "interleaved" pairs.

    Raises: TypeError or ValueError that name the field.
    Source: DeepSeek-AI 2025 (DeepSeek-V3.2), section 2.1; transformers' DeepseekV32Config.
    """

    num_heads: PositiveInt
    d_head: PositiveInt
    num_keys: PositiveInt
    layout: Literal["interleaved", "halves"] = "halves"

    def __post_init__(self) -> None:
        check_fields(self)


class LightningIndexer(nn.Module):
    """The queries, keys and weights by which keys are selected: I heads of e features, one key per token.

    Linear layers `query`, from the attention's compressed query, `key` and `weights`, from the token; a
    LayerNorm `key_norm` of the keys. The first d_rotary features are rotated. The weights are divided by
    sqrt(I e), which changes the loss of its training and not the selection; the layer that makes them may be
    of float32 beside half precision. The inputs are detached: an indexer is trained by `indexer_loss`
    alone, and that loss trains nothing else.

    positions: a scheme for d_rotary features; by default rotary ones in the layout of the configuration.

    Shapes: x (B, L, D), query_latent (B, L, c'), position_ids (L) or (B, L) -> queries (B, I, L, e), keys
        (B, 1, L, e), weights (B, I, L).
    Raises: TypeError or ValueError that name the argument.
    Source: DeepSeek-AI 2025 (DeepSeek-V3.2), equation 1; transformers' DeepseekV32Indexer.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        d_query_latent: PositiveInt,
        d_rotary: PositiveInt,
        config: IndexerConfig,
        *,
        positions: PositionScheme | None = None,
    ) -> None:
        super().__init__()
        heads, width = config.num_heads, config.d_head
        if d_rotary > width:
            wanted = f"at most d_head = {width} of the indexer"
            raise argument_error(ValueError, "d_rotary", d_rotary, wanted)
        self.query = nn.Linear(d_query_latent, heads * width, bias=False)
        self.key = nn.Linear(d_model, width, bias=False)
        self.key_norm = LayerNorm(width, eps=1e-6)
        self.weights = nn.Linear(d_model, heads, bias=False)
        rotary = RotaryPositions(d_rotary, layout=config.layout)
        self.positions = rotary if positions is None else positions
        self.config, self.d_rotary, self.scale = config, d_rotary, (heads * width) ** -0.5

    @checked(like="self.key.weight", D="self.key.in_features", c="self.query.in_features")
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        query_latent: Float[Tensor, "B L c"],
        position_ids: Int[Tensor, " L"] | Int[Tensor, "#B L"],
    ) -> IndexInputs:
        """What `indexed_attention` takes; the axis of length 1 of the keys is that of a cache's heads."""
        x = x.detach()
        query = split_heads(self.query(query_latent.detach()), self.config.num_heads)  # B I L e
        key = self.key_norm(self.key(x))[:, None]  # B 1 L e
        parts = (self.d_rotary, self.config.d_head - self.d_rotary)
        rotary_query, query = query.split(parts, -1)
        rotary_key, key = key.split(parts, -1)
        rotary_query, rotary_key = self.positions.rotate(rotary_query, rotary_key, position_ids)
        weights = self.scale * self.weights(x.to(self.weights.weight.dtype)).mT  # B I L
        return torch.cat((rotary_query, query), -1), torch.cat((rotary_key, key), -1), weights


class IndexedLatentAttention(LatentAttention):
    """DeepSeek sparse attention: an indexer selects the keys, latent attention reads those alone.

    Causal self-attention in the absorbed form, in which all heads share one key and one value, the
    latent: one gather serves them all. The cache keeps d_latent + d_rotary + e numbers per token: the
    indexer's keys stand behind the rotary ones.

    indexer: its sizes, see `IndexerConfig`. index_positions: a scheme of its own. options are those of
        `LatentAttention`; d_query_latent is needed.

    Shapes: x (B, L, D) -> (B, L, D), and the attention weights (B, H, L, S), after dropout, with
        return_weights, which takes the time and the memory of full attention.
    Raises: TypeError or ValueError that name the argument.
    Source: DeepSeek-AI 2025 (DeepSeek-V3.2), section 2.1; transformers' DeepseekV32Attention.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_heads: PositiveInt,
        *,
        indexer: IndexerConfig,
        d_rotary: PositiveInt,
        d_query_latent: PositiveInt,
        index_positions: PositionScheme | None = None,
        **options: Any,
    ) -> None:
        sizes = {"d_rotary": d_rotary, "d_query_latent": d_query_latent}
        super().__init__(d_model, num_heads, **sizes, **options)
        self.indexer = LightningIndexer(
            d_model, d_query_latent, d_rotary, indexer, positions=index_positions
        )
        if self.scale is None:
            self.scale = (self.d_head + d_rotary) ** -0.5  # not that of the absorbed queries

    @checked(like="self.down.weight", H="self.num_heads", D="self.down.in_features")
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        *,
        mask: Bool[Tensor, "#L #T"] | Bool[Tensor, "#B 1 #L #T"] | None = None,
        causal: bool = False,
        position_ids: Int[Tensor, " L"] | Int[Tensor, "#B L"] | None = None,
        cache: AttentionCache | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L D"] | tuple[Float[Tensor, "B L D"], Float[Tensor, "B H L S"]]:
        """Select and attend; mask, causal and position_ids are those of `MultiHeadAttention`."""
        if position_ids is None:
            start = 0 if cache is None else cache.length
            position_ids = torch.arange(start, start + x.shape[1], device=x.device)
        query_latent = self.query_norm(self.query_down(x))  # B L c'
        queries = split_heads(self.query_up(query_latent), self.num_heads)
        query, rotary_query = queries.split((self.d_head, self.d_rotary), -1)  # B H L .
        latent, rotary_key = self.down(x).split((self.d_latent, self.d_rotary), -1)  # B L .
        latent, rotary_key = self.latent_norm(latent)[:, None], rotary_key[:, None]  # B 1 L .
        rotary_query, rotary_key = self.positions.rotate(rotary_query, rotary_key, position_ids)
        index_query, index_key, index_weights = self.indexer(x, query_latent, position_ids)
        if cache is not None:
            latent, keys = cache.append(latent, torch.cat((rotary_key, index_key), -1))  # B 1 S .
            rotary_key, index_key = keys.split((self.d_rotary, index_key.shape[-1]), -1)
        up_key, up_value = self._up()
        attend = masked_indexed_attention if return_weights else indexed_attention
        answer = attend(
            torch.cat((query @ up_key, rotary_query), -1), torch.cat((latent, rotary_key), -1),
            latent, index_query, index_key[:, 0], index_weights,
            num_keys=self.indexer.config.num_keys, causal=causal, mask=one_for_all_heads(mask),
            scale=self.scale, dropout_p=self.dropout if self.training else 0.0,
            return_weights=return_weights, backend=self.backend,
        )  # fmt: skip
        means, weights = answer if return_weights else (answer, None)  # B H L c
        output = self.output(concat_heads(means @ up_value.mT))  # B L D
        return (output, weights) if return_weights else output


def one_for_all_heads(mask: Tensor | None) -> Bool[Tensor, "..."] | None:
    """The mask without its axis of heads."""
    if mask is None:
        return None
    return mask[None] if mask.ndim == 2 else mask[:, 0]
