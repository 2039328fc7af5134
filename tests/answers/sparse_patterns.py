"""Strided and fixed masks three ways, local attention in blocks and by torch, LongNet branch by branch."""

import math

import torch
from torch.nn import functional

from answers import right, wrong
from tested_transformer.mixers.fixed_patterns import Local, fixed_pattern, strided_pattern
from tested_transformer.mixers.longnet import LongNet, longnet_attention
from tested_transformer.mixers.patterns import sparse_attention


@right("strided_mask", "the package's")
def strided_from_package(length, stride):
    return strided_pattern(stride).mask(length)


@right("strided_mask", "by sets of keys")
def strided_by_sets(length, stride):
    mask = torch.zeros(length, length, dtype=torch.bool)
    for i in range(length):
        mask[i, list({*range(max(0, i - stride + 1), i + 1), *range(i, -1, -stride)})] = True
    return mask


@right("strided_mask", "by diagonals")
def strided_by_diagonals(length, stride):
    distances = [n for n in range(length) if n < stride or n % stride == 0]
    ones = torch.ones(length, length, dtype=torch.bool)
    return sum((ones.tril(-n) & ones.triu(-n)).int() for n in distances) + ones.int() * 0 > 0


@right("fixed_mask", "the package's")
def fixed_from_package(length, block, summary):
    return fixed_pattern(block, summary).mask(length)


@right("fixed_mask", "by sets of keys")
def fixed_by_sets(length, block, summary):
    mask = torch.zeros(length, length, dtype=torch.bool)
    for i in range(length):
        own = range(i // block * block, i + 1)
        mask[i, list({*own, *(j for j in range(i) if (j + summary) // block > j // block)})] = True
    return mask


@right("fixed_mask", "by a product of blocks")
def fixed_by_product(length, block, summary):
    blocks = -(-length // block)
    own = torch.kron(torch.eye(blocks), torch.ones(block, block))
    last = torch.kron(torch.ones(blocks, blocks), (torch.arange(block) >= block - summary).float())
    both = own + last.repeat_interleave(block, 0)
    return (both > 0)[:length, :length].tril()


@right("local_attention", "the package's, by blocks")
def local_from_package(query, key, value, *, window, causal=False):
    return sparse_attention(query, key, value, Local(window, causal))


@right("local_attention", "torch's attention under a mask")
def local_by_torch(query, key, value, *, window, causal=False):
    ones = torch.ones(query.shape[2], query.shape[2], dtype=torch.bool)
    band = ones.tril(window - 1).triu(1 - window)
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=band.tril() if causal else band
    )


@right("local_attention", "query by query")
def local_by_query(query, key, value, *, window, causal=False):
    outputs = [value[:, :, :0]]
    for i in range(query.shape[2]):
        near = slice(max(0, i - window + 1), i + 1 if causal else i + window)
        scores = torch.einsum("bhd,bhsd->bhs", query[:, :, i], key[:, :, near])
        weights = (scores / math.sqrt(query.shape[-1])).softmax(-1)
        outputs.append(torch.einsum("bhs,bhsv->bhv", weights, value[:, :, near])[:, :, None])
    return torch.cat(outputs, 2)


right("longnet_attention", "the package's")(longnet_attention)


@right("longnet_attention", "torch's attention with log counts as a bias")
def longnet_by_counts(
    query, key, value, segments, dilations, *, causal=True, key_mask=None, scale=None
):
    length = query.shape[2]
    counts = torch.stack(
        [LongNet(segments, dilations, h, causal).counts(length) for h in range(query.shape[1])]
    )[None].expand(len(query), -1, -1, -1)
    if key_mask is not None:
        counts = counts * key_mask[:, None, None]
    empty = ~(counts > 0).any(-1, keepdim=True)
    bias = (counts + empty.long()).to(query.dtype).log()
    output = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale)
    return output.masked_fill(empty, 0.0)


@right("longnet_attention", "branch by branch, mixed by a softmax of log-sum-exps")
def longnet_by_branches(
    query, key, value, segments, dilations, *, causal=True, key_mask=None, scale=None
):
    length, ids = query.shape[2], torch.arange(query.shape[2])
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    outputs, logs = [], []
    for segment, dilation in zip(segments, dilations, strict=True):
        place = ids % segment
        chosen = torch.stack([place % dilation == h % dilation for h in range(query.shape[1])])
        pairs = chosen[:, :, None] & chosen[:, None] & (ids[:, None] // segment == ids // segment)
        pairs = (pairs.tril() if causal else pairs)[None].expand(len(query), -1, -1, -1)
        if key_mask is not None:
            pairs = pairs & key_mask[:, None, None]
        scores = (query @ key.mT * scale).masked_fill(~pairs, -1e30)
        outputs.append((scores.softmax(-1) * pairs) @ value)
        logs.append(scores.logsumexp(-1))
    shares = torch.stack(logs).softmax(0)[..., None]
    return (shares * torch.stack(outputs)).sum(0) if length else value.clone()


@wrong("strided_mask", "the distance stride itself is missing")
def without_strides(length, stride):
    return Local(stride, causal=True).mask(length)


@wrong("fixed_mask", "blocks counted from the end")
def from_the_end(length, block, summary):
    return fixed_pattern(block, summary).mask(length).flip(0, 1).mT


@wrong("local_attention", "the values are detached")
def detached(query, key, value, *, window, causal=False):
    return local_from_package(query, key, value.detach(), window=window, causal=causal)


@wrong("longnet_attention", "padding attends")
def padding_attends(query, key, value, segments, dilations, *, key_mask=None, **options):
    return longnet_attention(query, key, value, segments, dilations, **options)


@wrong("longnet_attention", "the offset runs backwards")
def backwards(query, key, value, segments, dilations, **options):
    flipped = (each.flip(1) for each in (query, key, value))
    return longnet_attention(*flipped, segments, dilations, **options).flip(1)
