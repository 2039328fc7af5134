"""Attention whose keys and values are made once, for all the layers above."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..bounds import PositiveInt, Probability
from ..functional.attention import Backend, attention
from ..positions.protocol import PositionScheme
from ..shapes import checked
from .cache import AttentionCache
from .multi_head import concat_heads, head_size, split_heads

__all__ = ["SharedAttention", "SharedKeyValues"]


class SharedKeyValues(nn.Module):
    """The keys and values that all `SharedAttention` layers read: of one hidden state, normalized first.

    positions: a scheme whose `rotate` turns the keys before they enter the cache.

    Shapes: x (B, L, D) -> keys and values, each (B, G, S, d); S is L, and everything so far with a cache.
    Raises: TypeError or ValueError that name the argument.
    Source: Sun et al. 2024 (YOCO), section 2; microsoft/unilm, YOCO/yoco/models/decoder/yoco.py, CrossDecoder.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_kv_heads: PositiveInt,
        *,
        d_head: PositiveInt,
        norm: nn.Module,
        bias: bool = False,
        positions: PositionScheme | None = None,
    ) -> None:
        super().__init__()
        self.norm = norm
        self.key = nn.Linear(d_model, num_kv_heads * d_head, bias=bias)
        self.value = nn.Linear(d_model, num_kv_heads * d_head, bias=bias)
        self.num_kv_heads, self.positions = num_kv_heads, positions

    @checked(like="self.key.weight", D="self.key.in_features")
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        *,
        position_ids: Int[Tensor, " L"] | Int[Tensor, "#B L"],
        cache: AttentionCache | None = None,
    ) -> tuple[Float[Tensor, "B G S d"], Float[Tensor, "B G S d"]]:
        """Make those of the new tokens; give all."""
        x = self.norm(x)
        key = split_heads(self.key(x), self.num_kv_heads)  # B G L d
        value = split_heads(self.value(x), self.num_kv_heads)  # B G L d
        if self.positions is not None:
            _, key = self.positions.rotate(key, key, position_ids)
        return (key, value) if cache is None else cache.append(key, value)


class SharedAttention(nn.Module):
    """Multi-head attention to keys and values that it is given: linear layers `query` and `output`, no others.

    positions: a scheme whose `rotate` turns the queries, by the positions of their own tokens.

    Shapes: x (B, L, D), key and value (B, G, S, d) -> (B, L, D), and the attention weights (B, H, L, S), after
        dropout, with return_weights.
    Raises: TypeError or ValueError that name the argument.
    Source: Sun et al. 2024 (YOCO), section 2; microsoft/unilm, YOCO/yoco/models/decoder/cross_attention.py.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_heads: PositiveInt,
        *,
        d_head: PositiveInt | None = None,
        bias: bool = False,
        dropout: Probability = 0.0,
        positions: PositionScheme | None = None,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        d_head = head_size(d_model, num_heads, d_head)
        self.query = nn.Linear(d_model, num_heads * d_head, bias=bias)
        self.output = nn.Linear(num_heads * d_head, d_model, bias=bias)
        self.num_heads, self.d_head, self.positions = num_heads, d_head, positions
        self.dropout, self.backend = dropout, backend

    @checked(
        like="self.query.weight", H="self.num_heads", D="self.query.in_features", d="self.d_head"
    )
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        key: Float[Tensor, "B G S d"],
        value: Float[Tensor, "B G S d"],
        *,
        position_ids: Int[Tensor, " L"] | Int[Tensor, "#B L"],
        mask: Bool[Tensor, "#L #S"] | Bool[Tensor, "#B #H #L #S"] | None = None,
        causal: bool = True,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L D"] | tuple[Float[Tensor, "B L D"], Float[Tensor, "B H L S"]]:
        """Attend, head by head; mask and causal are those of `attention`: the last query is at the last key."""
        query = split_heads(self.query(x), self.num_heads)  # B H L d
        if self.positions is not None:
            query, _ = self.positions.rotate(query, query, position_ids)
        answer = attention(
            query, key, value, mask=mask, causal=causal,
            dropout_p=self.dropout if self.training else 0.0,
            return_weights=return_weights, backend=self.backend,
        )  # fmt: skip
        heads, weights = answer if return_weights else (answer, None)
        output = self.output(concat_heads(heads))  # B L D
        return (output, weights) if return_weights else output
