"""Learned sinks by a gate on plain attention, by torch's own kernel, and by einsum."""

import torch
from torch.nn import functional

from answers import right, wrong
from tested_transformer.functional.attention import attention
from tested_transformer.functional.sinks import sink_attention

right("sink_attention", "the package's")(sink_attention)


def added(length, keys, mask, bias, causal, window):
    """What is added to the scores: the bias, and minus infinity where a query may not attend."""
    back = torch.arange(length)[:, None] + keys - length - torch.arange(keys)
    allowed = torch.ones(length, keys, dtype=torch.bool) if mask is None else mask
    allowed = allowed & (back >= 0) if causal else allowed
    allowed = allowed & (back.abs() < window) if window is not None else allowed
    bias = torch.zeros(length, keys, dtype=torch.float64) if bias is None else bias
    return bias.expand(torch.broadcast_shapes(bias.shape, allowed.shape)).masked_fill(
        ~allowed, float("-inf")
    )


@right("sink_attention", "a gate on plain attention")
def by_gate(query, key, value, sinks, *, scale=None, **rules):
    """sigmoid(log of the denominator - sink) times what attention returns."""
    heads = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(heads, 1).mT
    scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
    names = {"mask": None, "bias": None, "causal": False, "window": None} | rules
    scores = scores + added(*scores.shape[-2:], **names).to(scores)
    hidden = (scores == float("-inf")).all(-1, keepdim=True)
    gate = (
        scores.masked_fill(hidden, 0.0).logsumexp(-1, keepdim=True) - sinks[:, None, None]
    ).sigmoid()
    return gate.masked_fill(hidden, 0.0) * attention(query, key, value, scale=scale, **rules)


@right("sink_attention", "torch's kernel, with a key of zeros behind")
def by_torch(
    query, key, value, sinks, *, mask=None, bias=None, causal=False, window=None, scale=None
):
    rules = added(query.shape[2], key.shape[2], mask, bias, causal, window).to(query)
    rules = rules.expand(query.shape[0], query.shape[1], *rules.shape[-2:])
    column = sinks[:, None, None].expand(*rules.shape[:-1], 1)
    key, value = (functional.pad(each, (0, 0, 0, 1)) for each in (key, value))
    return functional.scaled_dot_product_attention(
        query, key, value, torch.cat((rules, column), -1), scale=scale, enable_gqa=True
    )


@right("sink_attention", "einsum, the heads in groups")
def by_einsum(
    query, key, value, sinks, *, mask=None, bias=None, causal=False, window=None, scale=None
):
    groups = key.shape[1]
    rules = added(query.shape[2], key.shape[2], mask, bias, causal, window).to(query)
    scores = torch.einsum("bgnld,bgsd->bgnls", query.unflatten(1, (groups, -1)), key).flatten(1, 2)
    scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale) + rules
    column = sinks[:, None, None].expand(*scores.shape[:-1], 1)
    weights = torch.cat((scores, column), -1).softmax(-1)[..., :-1].unflatten(1, (groups, -1))
    return torch.einsum("bgnls,bgsv->bgnlv", weights, value).flatten(1, 2)


@wrong("sink_attention", "the sinks are detached")
def detached(query, key, value, sinks, **options):
    return sink_attention(query, key, value, sinks.detach(), **options)


@wrong("sink_attention", "the weights are made to sum to 1 again")
def renormalized(query, key, value, sinks, **options):
    _, weights = sink_attention(query, key, value, sinks, return_weights=True, **options)
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)
    return weights @ value.repeat_interleave(query.shape[1] // value.shape[1], 1)


@wrong("sink_attention", "the sinks go to the heads in another order")
def heads_tiled(query, key, value, sinks, **options):
    shared = query.shape[1] // key.shape[1]
    mixed = sinks.unflatten(0, (-1, shared)).mT.flatten() if shared > 1 else sinks.flip(0)
    return sink_attention(query, key, value, mixed, **options)
