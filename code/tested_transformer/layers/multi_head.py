"""Multi-head attention: several small attentions side by side, computed in one matrix product."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..bounds import AtLeast, Divides, PositiveInt, Probability
from ..errors import argument_error, shape_of
from ..functional.attention import Backend, attention
from ..positions.protocol import PositionScheme
from ..shapes import checked
from .cache import AttentionCache

__all__ = ["MultiHeadAttention", "concat_heads", "split_heads"]


@checked
def split_heads(x: Float[Tensor, "B L D"], num_heads: PositiveInt) -> Float[Tensor, "B H L d"]:
    """Split each token's features into heads: head h gets the h-th run of d = D / H neighbors.

    Reshape first, transpose second. A reshape straight to (B, H, L, d) has the right shape and mixes
    the tokens.

    Shapes: (B, L, D) -> (B, H, L, d), D = H d.
    Raises: TypeError or ValueError that name the argument.
    Source: Vaswani et al. 2017, section 3.2.2.
    """
    if x.shape[-1] % num_heads:
        wanted = f"a width that {num_heads} heads divide"
        raise argument_error(ValueError, "x", f"shape {shape_of(x)}", wanted)
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


@checked
def concat_heads(x: Float[Tensor, "B H L d"]) -> Float[Tensor, "B L D"]:
    """Put the heads of each token side by side: the way back from `split_heads`.

    Shapes: (B, H, L, d) -> (B, L, H d).
    Raises: TypeError or ValueError that name the argument.
    Source: Vaswani et al. 2017, section 3.2.2, "Concat".
    """
    return x.transpose(1, 2).flatten(2)


class MultiHeadAttention(nn.Module):
    """H attentions side by side, each with its own projections of d = d_head features.

    Linear layers `query`, `key`, `value` and `output`, made in that order. Without a context the
    sequence attends to itself; with one, queries come from x, keys and values from the context.
    Dropout acts on the attention weights, in training only.

    num_kv_heads: G key and value heads, each shared by H / G neighboring query heads (GQA). d_head:
        features per head, D / H by default. window: each query attends to that many keys at most.
    positions: a scheme whose `rotate` turns queries and keys (before keys enter the cache) and whose
        `slopes` or `bias` act on the scores; for self-attention only.

    Shapes: x (B, L, D), context (B, S, d_context) -> (B, L, D), and the attention weights (B, H, L, S),
        after dropout, with return_weights. S is L without a context, and everything so far with a cache.
    Raises: TypeError or ValueError that name the argument.
    Source: Vaswani et al. 2017, section 3.2.2; grouped-query attention: Ainslie et al. 2023.
    """

    @checked
    def __init__(
        self,
        d_model: PositiveInt,
        num_heads: PositiveInt,
        *,
        num_kv_heads: Annotated[int, AtLeast(1), Divides("num_heads")] | None = None,
        d_head: PositiveInt | None = None,
        d_context: PositiveInt | None = None,
        bias: bool = True,
        dropout: Probability = 0.0,
        positions: PositionScheme | None = None,
        window: PositiveInt | None = None,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        d_context = d_model if d_context is None else d_context
        d_head = head_size(d_model, num_heads, d_head)
        self.query = nn.Linear(d_model, num_heads * d_head, bias=bias)
        self.key = nn.Linear(d_context, num_kv_heads * d_head, bias=bias)
        self.value = nn.Linear(d_context, num_kv_heads * d_head, bias=bias)
        self.output = nn.Linear(num_heads * d_head, d_model, bias=bias)
        self.num_heads, self.num_kv_heads, self.d_head = num_heads, num_kv_heads, d_head
        self.positions, self.window = positions, window
        self.dropout, self.backend = dropout, backend

    @checked(
        any_dtype="bias",
        like="self.query.weight",
        H="self.num_heads",
        D="self.query.in_features",
        D_context="self.key.in_features",
    )
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        context: Float[Tensor, "B S D_context"] | None = None,
        *,
        mask: Bool[Tensor, "#L #T"] | Bool[Tensor, "#B #H #L #T"] | None = None,
        bias: Float[Tensor, "#L #T"] | Float[Tensor, "#B #H #L #T"] | None = None,
        causal: bool = False,
        position_ids: Int[Tensor, " L"] | Int[Tensor, "#B L"] | None = None,
        cache: AttentionCache | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "B L D"] | tuple[Float[Tensor, "B L D"], Float[Tensor, "B H L S"]]:
        """Attend, head by head, to x or to the context.

        mask, bias and causal are those of `attention`: (L, S), or four axes that broadcast with
        (B, H, L, S), where S counts every key in the cache. position_ids (L) or (B, L) are those of x,
        by default those that follow the cache. A bias by distance counts along the sequence, cache
        included. With a fixed cache the context is projected at the first call and ignored afterwards.
        """
        if self.positions is not None and context is not None:
            wanted = "none: this layer has positions, which are for self-attention"
            raise argument_error(ValueError, "context", f"shape {shape_of(context)}", wanted)
        query = split_heads(self.query(x), self.num_heads)  # B H L d
        if cache is not None and cache.fixed and cache.length:
            key, value = cache.keys, cache.values  # B G S d
        else:
            context = x if context is None else context
            key = split_heads(self.key(context), self.num_kv_heads)  # B G S d
            value = split_heads(self.value(context), self.num_kv_heads)  # B G S d
            query, key = self._rotate(query, key, position_ids, cache)
            key, value = (key, value) if cache is None else cache.append(key, value)
        answer = self._attend(
            query, key, value, mask=mask, causal=causal, window=self.window,
            **self._biases(query, key, bias),
            dropout_p=self.dropout if self.training else 0.0,
            return_weights=return_weights, backend=self.backend,
        )  # fmt: skip
        heads, weights = answer if return_weights else (answer, None)
        output = self._project(concat_heads(heads), x)  # B L D
        return (output, weights) if return_weights else output

    def _project(self, heads: Float[Tensor, "B L n"], x: Float[Tensor, "B L D"]) -> Tensor:
        """From the heads of each token, side by side, to its output; x is what the layer was called with."""
        return self.output(heads)

    def _rotate(
        self,
        query: Tensor,
        key: Tensor,
        position_ids: Tensor | None,
        cache: AttentionCache | None,
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys of the new tokens, rotated if the scheme rotates."""
        if self.positions is None:
            return query, key
        if position_ids is None:
            start = 0 if cache is None else cache.length
            position_ids = torch.arange(start, start + query.shape[2], device=query.device)
        return self.positions.rotate(query, key, position_ids)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        """What the heads compute: `attention`, with its options."""
        return attention(query, key, value, **options)

    def _biases(self, query: Tensor, key: Tensor, bias: Tensor | None) -> dict[str, Tensor | None]:
        """What is added to the scores: the call's own bias, and slopes or a bias of the scheme."""
        if self.positions is None:
            return {"bias": bias}
        slopes = self.positions.slopes(query)
        if slopes is not None:
            return {"bias": bias, "alibi_slopes": slopes}
        key_ids = torch.arange(key.shape[2], device=key.device)
        query_ids = key_ids[key.shape[2] - query.shape[2] :]  # the last query is at the last key
        by_distance = self.positions.bias(query_ids, key_ids, query)
        given = [each for each in (bias, by_distance) if each is not None]
        return {"bias": sum(given) if given else None}


def head_size(d_model: int, num_heads: int, d_head: int | None) -> int:
    """The features per head, D / H unless given. Raises: ValueError if H does not divide D then."""
    if d_head is None and d_model % num_heads:
        wanted = f"a number that divides d_model = {d_model}"
        raise argument_error(ValueError, "num_heads", num_heads, wanted)
    return d_model // num_heads if d_head is None else d_head
