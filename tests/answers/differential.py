"""Differential attention: the package's, two calls of torch's attention, head by head."""

import torch
from torch.nn import functional

from answers import right, wrong
from tested_transformer.functional.differential import differential_attention

right("differential_attention", "the package's")(differential_attention)


@right("differential_attention", "two calls of torch's attention")
def two_calls(query, key, value, lambda_, *, causal=False):
    length, keys = query.shape[2], key.shape[2]
    mask = torch.ones(length, keys, dtype=torch.bool).tril(keys - length) if causal else None
    repeat, half = query.shape[1] // key.shape[1], query.shape[1] // 2
    key = key.repeat_interleave(repeat, 1)
    value = torch.cat(value.chunk(2, 1), -1).repeat_interleave(repeat, 1)
    first, second = (
        functional.scaled_dot_product_attention(query[:, own], key[:, own], value, attn_mask=mask)
        for own in (slice(half), slice(half, None))
    )
    return first - lambda_ * second


@wrong("differential_attention", "the mean of both halves taken off")
def mean_taken_off(query, key, value, lambda_, *, causal=False):
    found = differential_attention(query, key, value, lambda_, causal=causal)
    return found - found.mean(-1, keepdim=True)


@wrong("differential_attention", "lambda without a gradient")
def lambda_detached(query, key, value, lambda_, *, causal=False):
    return differential_attention(query, key, value, lambda_.detach(), causal=causal)
