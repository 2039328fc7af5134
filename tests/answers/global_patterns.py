"""Longformer's and BigBird's attention by dense masks, by torch's kernel, and query by query."""

import torch
from torch.nn import functional

from answers import right, wrong
from tested_transformer.functional.attention import attention
from tested_transformer.mixers.global_patterns import LocalGlobal, big_bird_attention
from tested_transformer.mixers.longformer import longformer_attention
from tested_transformer.mixers.patterns import sparse_attention

# --- Longformer -----------------------------------------------------------------------------------

right("longformer_attention", "the package's")(longformer_attention)


def masks(is_global, window, key_mask):
    """The global tokens that are real, and the keys of local and of global queries."""
    real = torch.ones_like(is_global) if key_mask is None else key_mask
    chosen, ids = is_global & real, torch.arange(is_global.shape[1])
    near = ((ids[:, None] - ids).abs() < window) & real[:, None]  # B L L
    return chosen, (near | chosen[:, None])[:, None], real[:, None, None]


@right("longformer_attention", "two dense attentions")
def by_masks(query, key, value, *of_global, window, key_mask=None, scale=None):
    *of_global, is_global = of_global
    chosen, local, rows = masks(is_global, window, key_mask)
    by_window = attention(query, key, value, mask=local, scale=scale)
    by_all = attention(*of_global, mask=rows, scale=scale)
    return torch.where(chosen[:, None, :, None], by_all, by_window)


@right("longformer_attention", "torch's kernel, all queries at once")
def by_torch(
    query, key, value, global_query, global_key, global_value, is_global, *,
    window, key_mask=None, scale=None,
):  # fmt: skip
    """Both sets of keys side by side: a mask says which of them a query reads."""
    chosen, local, rows = masks(is_global, window, key_mask)
    is_row = chosen[:, None, :, None]
    allowed = torch.cat((local & ~is_row, rows & is_row), -1)
    features = query.shape[-1] ** -0.5 if scale is None else scale
    query = torch.cat((query * ~is_row, global_query * is_row), -1)
    key = torch.cat(
        (functional.pad(key, (0, key.shape[-1])), functional.pad(global_key, (key.shape[-1], 0))), 2
    )
    output = functional.scaled_dot_product_attention(
        query, key, torch.cat((value, global_value), 2), allowed.expand(*query.shape[:3], -1),
        scale=features,
    )  # fmt: skip
    return output.masked_fill(~allowed.any(-1, keepdim=True), 0.0)


@right("longformer_attention", "a pattern per sequence")
def by_patterns(query, key, value, *of_global, window, key_mask=None, scale=None):
    *of_global, is_global = of_global
    real = torch.ones_like(is_global) if key_mask is None else key_mask
    chosen, outputs = is_global & real, [query.new_zeros(value.shape)[:0]]
    for b in range(len(query)):
        one = [each[b : b + 1] for each in (query, key, value, *of_global, real)]
        pattern = LocalGlobal(window, tuple(chosen[b].nonzero()[:, 0].tolist()))
        local = sparse_attention(*one[:3], pattern, key_mask=one[-1], scale=scale)
        rows = attention(*one[3:6], mask=one[-1][:, None, None], scale=scale)
        outputs.append(torch.where(chosen[b, :, None], rows, local))
    return torch.cat(outputs)


@wrong("longformer_attention", "the global values are detached")
def detached(*tensors, **options):
    *others, global_value, is_global = tensors
    return longformer_attention(*others, global_value.detach(), is_global, **options)


@wrong("longformer_attention", "global tokens add to their local output")
def added(query, key, value, *of_global, window, **options):
    *_, is_global = of_global
    both = longformer_attention(query, key, value, *of_global, window=window, **options)
    local = longformer_attention(
        query, key, value, query, key, value, is_global, window=window, **options
    )
    return torch.where(is_global[:, None, :, None], both + local, both)


# --- BigBird --------------------------------------------------------------------------------------

right("big_bird_attention", "the package's")(big_bird_attention)


def block_mask(random_blocks, length, block_size):
    """Which keys each query of each head reads. Shapes: (H, L, L)."""
    block = torch.arange(length) // block_size
    last = block.max() if length else 0
    near = (block[:, None] - block).abs() <= 1
    ends = (block == 0) | (block == last)
    allowed = (near | ends | ends[:, None]).repeat(len(random_blocks), 1, 1)
    for i in range(random_blocks.shape[1]):
        chosen = (random_blocks[:, i, :, None] == block).any(1)  # H L
        allowed[:, block == i + 1] |= chosen[:, None]
    return allowed


@right("big_bird_attention", "a dense mask")
def big_bird_by_mask(query, key, value, random_blocks, *, block_size, key_mask=None, scale=None):
    allowed = block_mask(random_blocks, query.shape[2], block_size)[None]
    allowed = allowed if key_mask is None else allowed & key_mask[:, None, None]
    return attention(query, key, value, mask=allowed, scale=scale)


@right("big_bird_attention", "block by block, by torch's kernel")
def big_bird_by_blocks(query, key, value, random_blocks, *, block_size, key_mask=None, scale=None):
    length = query.shape[2]
    allowed = block_mask(random_blocks, length, block_size)
    real = torch.ones(len(query), length, dtype=torch.bool) if key_mask is None else key_mask
    output = query.new_zeros(value.shape)
    for h in range(query.shape[1]):
        for start in range(0, length, block_size):
            at, keys = slice(start, start + block_size), allowed[h, start]
            here = real[:, None, keys]
            found = functional.scaled_dot_product_attention(
                query[:, h, at], key[:, h, keys], value[:, h, keys],
                here.expand(-1, query[:, h, at].shape[1], -1), scale=scale,
            ).masked_fill(~here.any(-1, keepdim=True), 0.0)  # fmt: skip
            output = output.index_put(
                (torch.arange(len(query))[:, None], torch.tensor(h), torch.arange(length)[at]),
                found,
            )
    return output


@wrong("big_bird_attention", "keys of random blocks are detached")
def random_detached(query, key, value, random_blocks, **options):
    none = torch.full_like(random_blocks, -1)
    both = big_bird_attention(query, key, value, random_blocks, **options)
    without = big_bird_attention(query, key, value, none, **options)
    return without + (both - without).detach()


@wrong("big_bird_attention", "blocks that are listed first in a row only")
def first_only(query, key, value, random_blocks, **options):
    return big_bird_attention(query, key, value, random_blocks[..., :1], **options)
