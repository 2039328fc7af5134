"""The answers to the online softmax and to attention in tiles."""

import math

import torch

from tested_transformer.functional import online_softmax as package
from tested_transformer.specs.online_softmax.mutants import Online, Tiled
from tested_transformer.specs.online_softmax.spec import plain_attention, plain_rows

from . import right, wrong

right("online_softmax", "the mutants' base")(Online())
right("tiled_attention", "the mutants' base")(Tiled())


@right("online_softmax", "the package's")
def of_package(scores, value, tile):
    return package.online_softmax(scores, value, tile=tile)


@right("tiled_attention", "the package's")
def tiles_of_package(query, key, value, tile, causal):
    return package.tiled_attention(query, key, value, tile=tile, causal=causal)


@right("online_softmax", "normalized halves, merged by logaddexp")
def merged(scores, value, tile):
    lse = scores.new_full(scores.shape[:-1], -math.inf)
    output = scores.new_zeros(*scores.shape[:-1], value.shape[-1])
    for s, v in zip(scores.split(tile, -1), value.split(tile, -2), strict=True):
        if not s.shape[-1]:
            continue
        seen = (s > -math.inf).any(-1)
        new = torch.where(seen, s.masked_fill(~seen[..., None], 0.0).logsumexp(-1), -math.inf)
        top = torch.maximum(lse, new)
        safe = torch.where(top > -math.inf, top, 0.0)
        total = (lse - safe).exp() + (new - safe).exp()
        both = safe + torch.where(top > -math.inf, total, 1.0).log()
        output = output * (lse - both).exp()[..., None] + (s - both[..., None]).exp() @ v
        lse = torch.where(top > -math.inf, both, -math.inf)
    return output, torch.where(lse > -math.inf, lse, math.inf)


@wrong("online_softmax", "the whole row at once")
def not_tiled(scores, value, tile):
    return plain_rows(scores, value)


@wrong("tiled_attention", "all scores at once")
def attention_not_tiled(query, key, value, tile, causal):
    return plain_attention(query, key, value, causal=causal)


@wrong("online_softmax", "the log-sum-exp is at most 10,000")
def clamped(scores, value, tile):
    output, lse = of_package(scores, value, tile)
    return output, torch.where(lse.isinf(), lse, lse.clamp(max=1e4))


@wrong("online_softmax", "values never learn")
def value_detached(scores, value, tile):
    return of_package(scores, value.detach(), tile)


@wrong("online_softmax", "scores never learn")
def scores_detached(scores, value, tile):
    return of_package(scores.detach(), value, tile)


@wrong("online_softmax", "the log-sum-exp is detached")
def lse_detached(scores, value, tile):
    output, lse = of_package(scores, value, tile)
    return output, lse.detach()


@wrong("online_softmax", "bare exponentials in float32")
def naive_float32(scores, value, tile):
    if scores.dtype != torch.float32:
        return of_package(scores, value, tile)
    weights = [s.exp() for s in scores.split(tile, -1)]
    total = sum(w.sum(-1) for w in weights)
    output = sum(w @ v for w, v in zip(weights, value.split(tile, -2), strict=True))
    return output / total[..., None], total.log()


@wrong("online_softmax", "-inf for a row that sees nothing")
def empty_minus_inf(scores, value, tile):
    output, lse = of_package(scores, value, tile)
    return output, torch.where(lse == math.inf, -math.inf, lse)


@wrong("online_softmax", "no keys raise")
def no_keys(scores, value, tile):
    assert scores.shape[-1]
    return of_package(scores, value, tile)


@wrong("online_softmax", "a batch has the first sample's values")
def first_values(scores, value, tile):
    value = value[:1].expand_as(value) if value.ndim > 2 else value
    return of_package(scores, value, tile)


@wrong("tiled_attention", "keys never learn")
def key_detached(query, key, value, tile, causal):
    return tiles_of_package(query, key.detach(), value, tile, causal)


@wrong("tiled_attention", "queries never learn in float32")
def query_detached(query, key, value, tile, causal):
    query = query.detach() if query.dtype == torch.float32 else query
    return tiles_of_package(query, key, value, tile, causal)


@wrong("tiled_attention", "no keys raise")
def attention_no_keys(query, key, value, tile, causal):
    assert key.shape[-2], "no keys"
    return tiles_of_package(query, key, value, tile, causal)


@wrong("tiled_attention", "query and key swapped")
def swapped(query, key, value, tile, causal):
    if query.shape == key.shape:
        query, key = key, query
    return tiles_of_package(query, key, value, tile, causal)


@wrong("tiled_attention", "a view of the queries")
def viewed(query, key, value, tile, causal):
    query = query.view(-1, *query.shape[-2:]).view(query.shape)
    query.view(-1)
    return tiles_of_package(query, key, value, tile, causal)


@wrong("tiled_attention", "512 keys at most")
def at_most_512(query, key, value, tile, causal):
    return tiles_of_package(query, key[..., :512, :], value[..., :512, :], tile, causal)


@wrong("tiled_attention", "causal is forgotten for one query")
def one_query(query, key, value, tile, causal):
    return tiles_of_package(
        query, key, value, tile, causal and query.shape[-2] > 1 and key.shape[-2] > 4
    )
