"""Longformer's attention: a window for most tokens, and global tokens with projections of their own."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from ..bounds import PositiveInt
from ..functional.attention import attention
from ..shapes import checked
from .fixed_patterns import Local

__all__ = ["longformer_attention"]


@checked
def longformer_attention(
    query: Float[Tensor, "B H L d"],
    key: Float[Tensor, "B H L d"],
    value: Float[Tensor, "B H L dv"],
    global_query: Float[Tensor, "B H L d"],
    global_key: Float[Tensor, "B H L d"],
    global_value: Float[Tensor, "B H L dv"],
    is_global: Bool[Tensor, "B L"],
    *,
    window: PositiveInt,
    key_mask: Bool[Tensor, "B L"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "B H L dv"]:
    """A window and the global tokens for local queries; all tokens, by other projections, for global ones.

    A local query has one softmax over both, with the local keys. A global query reads the global keys and
    values of all tokens. Each sequence has its own global tokens, and their number may differ.

    is_global: True where a token is global; padding never is. window: as in `Local`, the keys fewer than
        `window` steps away. key_mask: True where a token is no padding. scale: 1 / sqrt(d) by default.

    Shapes: queries and keys (B, H, L, d), values (B, H, L, dv), is_global and key_mask (B, L)
        -> (B, H, L, dv).
    Raises: TypeError or ValueError that name the argument.
    Source: Beltagy et al. 2020 (Longformer).
    """
    real = torch.ones_like(is_global) if key_mask is None else key_mask
    is_global = is_global & real
    ids = _positions(is_global)  # B g
    by_window = _local_queries(query, key, value, is_global, real, ids, window, scale)
    by_all = attention(
        _take(global_query, ids), global_key, global_value, mask=real[:, None, None], scale=scale
    )  # B H g dv
    at = ids.where(ids >= 0, query.shape[2])[:, None, :, None].expand_as(by_all)
    longer = functional.pad(
        by_window, (0, 0, 0, 1)
    )  # one more token, which the ids of none point at
    return longer.scatter(2, at, by_all)[:, :, :-1]


def _local_queries(
    query: Tensor, key: Tensor, value: Tensor, is_global: Tensor, real: Tensor, ids: Tensor,
    window: int, scale: float | None,
) -> Tensor:  # fmt: skip
    """Blocks of `window` queries, with the keys of three blocks and the global ones: L (3 window + g) scores."""
    length = query.shape[2]
    (part,) = Local(min(window, max(1, length))).parts(length)  # n blocks of w queries, 3 w keys
    near = part.mask & (real & ~is_global)[:, part.keys][:, :, None]  # B n w 3w
    every = (ids >= 0)[:, None, None].expand(*near.shape[:3], -1)  # B n w g
    keys, values = (_with_global(each, part.keys, ids) for each in (key, value))
    mask = torch.cat((near, every), -1)[:, None]  # B 1 n w 3w+g
    blocks = attention(query[:, :, part.queries], keys, values, mask=mask, scale=scale)
    return blocks.flatten(2, 3)[:, :, :length]  # B H L dv


def _with_global(x: Tensor, blocks: Int[Tensor, "n c"], ids: Int[Tensor, "B g"]) -> Tensor:
    """The tokens of each block, and behind them the global ones of the sequence."""
    chosen = _take(x, ids)[:, :, None].expand(-1, -1, len(blocks), -1, -1)
    return torch.cat((x[:, :, blocks], chosen), 3)  # B H n c+g d


def _positions(is_global: Bool[Tensor, "B L"]) -> Int[Tensor, "B g"]:
    """Where the global tokens of each sequence are, first to last; -1 where it has fewer than another."""
    most = int(is_global.sum(-1).max()) if is_global.numel() else 0
    first = is_global.int().argsort(dim=-1, descending=True, stable=True)[:, :most]  # B g
    return first.where(is_global.gather(-1, first), -1)


def _take(x: Float[Tensor, "B H L d"], ids: Int[Tensor, "B g"]) -> Float[Tensor, "B H g d"]:
    """The rows of x at these positions, other ones in each sequence; what is at -1 does not count."""
    return x.gather(2, ids.clamp(min=0)[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[-1]))
