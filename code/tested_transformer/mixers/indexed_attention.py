"""DeepSeek sparse attention: a cheap indexer scores all keys, and attention reads the k best of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..bounds import AtLeast, Below, NonNegativeInt, PositiveFloat, PositiveInt
from ..errors import argument_error
from ..functional.attention import attention
from ..functional.masks import causal_mask
from ..positions.rotary import apply_rotary
from ..shapes import checked

__all__ = [
    "attend_to_selected",
    "indexed_attention",
    "indexer_loss",
    "indexer_scores",
    "lightning_indexer",
    "masked_indexed_attention",
    "select_keys",
    "selection_mask",
]


# --- The indexer ----------------------------------------------------------------------------------


@checked(any_dtype="weights")
def indexer_scores(
    query: Float[Tensor, "B I L e"], key: Float[Tensor, "B S e"], weights: Float[Tensor, "B I L"]
) -> Float[Tensor, "B L S"]:
    """Score every key for every query: a weighted sum over the indexer's heads of ReLU(q . k).

    All I heads share one key per token. A weight may be negative: its head then votes against the keys
    that match. In at least float32; the weights may be of a wider dtype than the rest.

    Shapes: query (B, I, L, e), key (B, S, e), weights (B, I, L) -> (B, L, S).
    Raises: TypeError or ValueError that name the argument.
    Source: DeepSeek-AI 2025 (DeepSeek-V3.2), equation 1.

    >>> query, key = torch.tensor([[[[1.0]], [[-1.0]]]]), torch.tensor([[[3.0], [-2.0]]])
    >>> indexer_scores(query, key, torch.tensor([[[1.0], [0.5]]]))
    tensor([[[3., 1.]]])
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    matches = torch.relu(query.to(wide) @ key.to(wide)[:, None].mT)  # B I L S
    return torch.einsum("bil,bils->bls", weights.to(wide), matches)


@checked
def select_keys(
    scores: Float[Tensor, "B L S"],
    num_keys: PositiveInt,
    *,
    mask: Bool[Tensor, "#B #L #S"] | None = None,
) -> tuple[Int[Tensor, "B L K"], Bool[Tensor, "B L K"]]:
    """The keys of the K = min(num_keys, S) largest scores of each query, and which of them are visible.

    Masked keys come last: one is among the K only where fewer than K are visible, and is marked False.
    Of equal scores at the boundary, `torch.topk` decides which are in.

    Shapes: scores (B, L, S), mask (B, L, S), broadcast, True = may be read -> indices and visible, both
        (B, L, K).
    Raises: TypeError or ValueError that name the argument.
    Source: DeepSeek-AI 2025 (DeepSeek-V3.2), equation 2.
    """
    if mask is None:
        mask = torch.ones_like(scores, dtype=torch.bool)
    mask = mask.expand_as(scores)
    count = min(num_keys, scores.shape[-1])
    indices = scores.masked_fill(~mask, -torch.inf).topk(count, dim=-1).indices  # B L K
    return indices, mask.gather(-1, indices)


# --- Attention over the selected keys -------------------------------------------------------------


@checked
def attend_to_selected(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B G S d"],
    value: Float[Tensor, "B G S dv"],
    indices: Annotated[Int[Tensor, "B L K"], AtLeast(0), Below("key.shape.2")],
    visible: Bool[Tensor, "B L K"],
    **options: Any,
) -> Float[Tensor, "B H L dv"]:
    """Gather the keys and values of each query, the same K for all heads, then attend to those alone.

    Memory for L K keys, not for L S scores. G divides H. options are those of `attention`.

    Shapes: query (B, H, L, d), key (B, G, S, d), value (B, G, S, dv), indices and visible (B, L, K)
        -> (B, H, L, dv).
    Raises: as `attention`.
    Source: DeepSeek-AI 2025 (DeepSeek-V3.2), equation 2.
    """
    num_groups = key.shape[1]
    if query.shape[1] % num_groups:
        wanted = f"a number of heads that divides the {query.shape[1]} of query"
        raise argument_error(ValueError, "key", f"{num_groups} heads", wanted)
    batch = torch.arange(len(query), device=query.device)[:, None, None]
    own_keys, own_values = (
        each.transpose(1, 2)[batch, indices].transpose(2, 3)  # B L G K .
        for each in (key, value)
    )
    queries = query.unflatten(1, (num_groups, query.shape[1] // num_groups)).permute(
        0, 3, 1, 2, 4
    )  # B L G H/G d
    mask = visible[:, :, None, None]  # B L 1 1 K
    heads = attention(queries, own_keys, own_values, mask=mask, **options)  # B L G H/G dv
    return heads.flatten(2, 3).transpose(1, 2)


@checked(any_dtype="index_weights")
def indexed_attention(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B G S d"],
    value: Float[Tensor, "B G S dv"],
    index_query: Float[Tensor, "B I L e"],
    index_key: Float[Tensor, "B S e"],
    index_weights: Float[Tensor, "B I L"],
    *,
    num_keys: PositiveInt,
    causal: bool = True,
    key_mask: Bool[Tensor, "B S"] | None = None,
    mask: Bool[Tensor, "#B #L #S"] | None = None,
    chunk_size: PositiveInt = 64,
    **options: Any,
) -> Float[Tensor, "B H L dv"]:
    """Score, select, attend: chunk after chunk of queries, so that no (L, S) matrix is ever whole.

    The indexer compares each query with all keys it may read, at a small cost; attention reads num_keys
    of them. Which keys are selected has no gradient. num_keys of S or more is full attention.

    causal: aligned bottom-right, as in `attention`. key_mask: False for padding. mask: False for keys that
    a query may not read, for any other reason. options are those of `attention`.

    Shapes: query (B, H, L, d), key (B, G, S, d), value (B, G, S, dv), index_query (B, I, L, e),
        index_key (B, S, e), index_weights (B, I, L) -> (B, H, L, dv).
    Raises: as `attention`.
    Source: DeepSeek-AI 2025 (DeepSeek-V3.2), equations 1 and 2.
    """
    outputs = [query.new_zeros(*query.shape[:2], 0, value.shape[-1])]
    for rows in _chunks(query.shape[2], chunk_size):
        allowed = _visible(rows, query, key, causal, key_mask, mask)
        with torch.no_grad():
            scores = indexer_scores(index_query[:, :, rows], index_key, index_weights[:, :, rows])
            selected = select_keys(scores, num_keys, mask=allowed)
        outputs.append(attend_to_selected(query[:, :, rows], key, value, *selected, **options))
    return torch.cat(outputs, 2)


def _chunks(length: int, size: int) -> list[slice]:
    """The queries of each chunk; the last one may be shorter."""
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _visible(
    rows: slice, query: Tensor, key: Tensor, causal: bool, key_mask: Tensor | None,
    mask: Tensor | None,
) -> Bool[Tensor, "#B l S"]:  # fmt: skip
    """Which keys the queries of these rows may read."""
    length, num_keys = query.shape[2], key.shape[2]
    size = (rows.stop - rows.start, num_keys)
    allowed = torch.ones(size, dtype=torch.bool, device=query.device)[None]  # 1 l S
    if causal:
        allowed = allowed.tril(rows.start + num_keys - length)
    if key_mask is not None:
        allowed = allowed & key_mask[:, None]
    if mask is not None:
        allowed = allowed & (mask if mask.shape[1] == 1 else mask[:, rows])
    return allowed


# --- The dense twin -------------------------------------------------------------------------------


@checked
def selection_mask(
    indices: Annotated[Int[Tensor, "B L K"], AtLeast(0), Below("num_keys")],
    visible: Bool[Tensor, "B L K"],
    num_keys: NonNegativeInt,
) -> Bool[Tensor, "B L S"]:
    """The selected keys as a boolean matrix of num_keys columns: True = selected and visible.

    Shapes: indices and visible (B, L, K) -> (B, L, S), S = num_keys.
    Raises: TypeError or ValueError that name the argument.
    Source: chapter 17.
    """
    empty = torch.zeros(*indices.shape[:2], num_keys, dtype=torch.bool, device=indices.device)
    return empty.scatter(-1, indices, visible)


@checked(any_dtype="index_weights")
def masked_indexed_attention(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B G S d"],
    value: Float[Tensor, "B G S dv"],
    index_query: Float[Tensor, "B I L e"],
    index_key: Float[Tensor, "B S e"],
    index_weights: Float[Tensor, "B I L"],
    *,
    num_keys: PositiveInt,
    causal: bool = True,
    key_mask: Bool[Tensor, "B S"] | None = None,
    mask: Bool[Tensor, "#B #L #S"] | None = None,
    **options: Any,
) -> Float[Tensor, "B H L dv"] | tuple[Float[Tensor, "B H L dv"], Float[Tensor, "B H L S"]]:
    """`indexed_attention` with all L S scores: those of keys that are not selected are masked.

    It saves nothing, and can return the attention weights.

    Shapes, options: those of `indexed_attention`, and return_weights of `attention`.
    Raises: as `attention`.
    Source: DeepSeek-AI 2025 (DeepSeek-V3.2), equations 1 and 2.
    """
    allowed = _visible(slice(0, query.shape[2]), query, key, causal, key_mask, mask)
    scores = indexer_scores(index_query, index_key, index_weights)
    selected = selection_mask(*select_keys(scores, num_keys, mask=allowed), key.shape[2])
    return attention(query, key, value, mask=selected[:, None], **options)


# --- With positions, and how it is trained --------------------------------------------------------


@checked(any_dtype="weights")
def lightning_indexer(
    query: Float[Tensor, "B I L e"],
    key: Float[Tensor, "B L e"],
    weights: Float[Tensor, "B I L"],
    *,
    num_keys: PositiveInt,
    rotary_dim: PositiveInt,
    base: PositiveFloat = 10000.0,
    layout: Literal["interleaved", "halves"] = "halves",
) -> Bool[Tensor, "B L L"]:
    """Which keys the indexer of DeepSeek-V3.2 selects: rotate, score, mask the future, take the best.

    The first rotary_dim features of its queries and keys are rotated, in pairs of the layout "halves",
    where the attention beside it rotates "interleaved" pairs.

    Shapes: query (B, I, L, e), key (B, L, e), weights (B, I, L) -> (B, L, L), True = selected.
    Raises: TypeError or ValueError that name the argument.
    Source: DeepSeek-AI 2025 (DeepSeek-V3.2), equation 1; transformers' DeepseekV32Indexer.
    """
    ids = torch.arange(key.shape[1], device=key.device)
    query, key = (
        apply_rotary(each, ids, base=base, layout=layout, rotary_dim=rotary_dim)
        for each in (query, key[:, None])
    )
    scores = indexer_scores(query, key[:, 0], weights)
    past = causal_mask(len(ids), device=key.device)[None]
    return selection_mask(*select_keys(scores, num_keys, mask=past), len(ids))


@checked(any_dtype="attention_weights")
def indexer_loss(
    scores: Float[Tensor, "B L S"],
    attention_weights: Float[Tensor, "B H L S"],
    *,
    mask: Bool[Tensor, "#B #L #S"] | None = None,
) -> Float[Tensor, ""]:
    """How far the indexer's softmax is from what the heads attend to: the mean over queries of KL(p || q).

    p is the sum of the heads' attention weights, divided by its own sum over the keys of the mask; q is
    the softmax of the scores over the same keys. No gradient reaches the attention. In the dense warm-up the
    mask is that of the attention, in the sparse stage that of the selected keys. A query that attends to
    nothing does not count.

    Shapes: scores (B, L, S), attention_weights (B, H, L, S), mask (B, L, S), broadcast -> ().
    Raises: TypeError or ValueError that name the argument.
    Source: DeepSeek-AI 2025 (DeepSeek-V3.2), section 2.1, its two stages of training.
    """
    target = attention_weights.detach().to(scores.dtype).sum(1)  # B L S
    if mask is not None:
        target, scores = target * mask, scores.masked_fill(~mask, -torch.inf)
    total = target.sum(-1, keepdim=True)  # B L 1
    counts = (total > 0).squeeze(-1)  # B L
    target, total, scores = (each[counts] for each in (target, total, scores))  # N S
    target = target / total
    logs = scores.log_softmax(-1).masked_fill(target == 0, 0.0)  # where p is 0, p log q is 0
    return (torch.xlogy(target, target) - target * logs).sum() / max(len(target), 1)
