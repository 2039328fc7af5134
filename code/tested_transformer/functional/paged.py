"""Paged attention: keys and values stand in blocks of a pool, and a block table says which are a sequence's."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..bounds import AtLeast, Below, NonNegativeInt, PositiveInt
from ..errors import argument_error
from ..shapes import checked
from .attention import attention

__all__ = ["gather_pages", "paged_attention", "token_slots"]


@checked
def token_slots(
    block_table: Annotated[Int[Tensor, "B T"], AtLeast(0)],
    token_ids: Annotated[Int[Tensor, "B S"], AtLeast(0)],
    block_size: PositiveInt,
) -> Int[Tensor, "B S"]:
    """Where each token stands in the pool: token t is number t % block_size of block t // block_size.

    token_ids count the tokens of a sequence from 0; a slot counts those of the whole pool.

    Shapes: block_table (B, T), token_ids (B, S) -> (B, S).
    Raises: TypeError or ValueError that name the argument, for a token beyond the table too.
    Source: Kwon et al. 2023, section 4.2.

    >>> token_slots(torch.tensor([[7, 1]]), torch.tensor([[0, 3, 4]]), 4).tolist()
    [[28, 31, 4]]
    """
    room = block_table.shape[1] * block_size
    if token_ids.numel() and int(token_ids.max()) >= room:
        wanted = f"tokens below {room}, for which the table has blocks"
        raise argument_error(ValueError, "token_ids", int(token_ids.max()), wanted)
    blocks = block_table.long().gather(1, token_ids // block_size)  # B S
    return blocks * block_size + token_ids % block_size


@checked
def gather_pages(
    pages: Float[Tensor, "N P G d"], slots: Annotated[Int[Tensor, "B S"], AtLeast(0)]
) -> Float[Tensor, "B G S d"]:
    """The keys (or values) in these slots, side by side as `attention` wants them.

    Shapes: pages (N, P, G, d), N blocks of P tokens, slots (B, S) -> (B, G, S, d).
    Raises: TypeError or ValueError that name the argument.
    Source: Kwon et al. 2023, section 4.1.
    """
    room = pages.shape[0] * pages.shape[1]
    if slots.numel() and int(slots.max()) >= room:
        raise argument_error(ValueError, "slots", int(slots.max()), f"slots below {room}")
    return pages.flatten(0, 1)[slots].transpose(1, 2)


@checked
def aligned_token_ids(
    lengths: Annotated[Int[Tensor, " B"], AtLeast(0)], num_keys: NonNegativeInt
) -> Int[Tensor, "B S"]:
    """The tokens of each sequence in num_keys columns, the last one always in the last column.

    Columns without a token have negative numbers. So aligned, one causal mask fits all sequences.

    Shapes: lengths (B) -> (B, S).
    Raises: TypeError or ValueError that name the argument.
    Source: chapter 16.

    >>> aligned_token_ids(torch.tensor([3, 1]), 3).tolist()
    [[0, 1, 2], [-2, -1, 0]]
    """
    columns = torch.arange(num_keys, device=lengths.device)
    return columns - (num_keys - lengths[:, None])


@checked
def paged_attention(
    query: Float[Tensor, "B H L d"],
    key_pages: Float[Tensor, "N P G d"],
    value_pages: Float[Tensor, "N P G dv"],
    block_table: Annotated[Int[Tensor, "B T"], AtLeast(0), Below("N")],
    lengths: Annotated[Int[Tensor, " B"], AtLeast(0)],
    **options: Any,
) -> Float[Tensor, "B H L dv"] | tuple[Float[Tensor, "B H L dv"], Float[Tensor, "B H L S"]]:
    """Causal attention of the last L tokens of each sequence to all of its tokens, which stand in pages.

    Gather the pages, then attend as usual. Sequences may have different lengths, and share blocks. A
    query before the first token of its sequence (length below L) gets zeros. options are those of
    `attention` but for mask and causal.

    Shapes: query (B, H, L, d), key_pages (N, P, G, d), value_pages (N, P, G, dv), N blocks of P tokens,
        block_table (B, T), lengths (B), the tokens of each sequence -> (B, H, L, dv), and the weights
        (B, H, L, S), S the largest length, with return_weights.
    Raises: as `attention`; ValueError for a length beyond the table.
    Source: Kwon et al. 2023, section 4.1.
    """
    num_keys = int(lengths.max()) if len(lengths) else 0
    token_ids = aligned_token_ids(lengths, num_keys)  # B S
    slots = token_slots(block_table, token_ids.clamp(min=0), key_pages.shape[1])
    key, value = gather_pages(key_pages, slots), gather_pages(value_pages, slots)  # B G S .
    real = (token_ids >= 0)[:, None, None]  # B 1 1 S
    return attention(query, key, value, mask=real, causal=True, **options)
