"""Ring attention in its plainest form, and what the workers of chapter 19's page about it do."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.functional import pad

from ..analysis.parallel_costs import Messages
from ..distributed.ring_attention import contiguous_shard, pass_on, ring_attention, zigzag_shard

SHARDS = {"contiguous": contiguous_shard, "zigzag": zigzag_shard}


# --- The plain form -------------------------------------------------------------------------------


def merge(output, lse, other_output, other_lse):
    """Attention to two sets of keys from the attention to each."""
    new = torch.logaddexp(lse, other_lse)
    weight, other_weight = ((each - finite(new)).exp()[..., None] for each in (lse, other_lse))
    return weight * output + other_weight * other_output, new


def finite(lse):
    """0 in place of -inf, the log-sum-exp of no keys: -inf - (-inf) would be NaN."""
    return lse.masked_fill(lse == -torch.inf, 0.0)


def visible_scores(query, key, query_ids, key_ids):
    """Scaled scores; -inf where the key is later than the query, or padding (position -1)."""
    visible = (key_ids <= query_ids[:, None]) & (key_ids >= 0)
    scores = query @ key.mT / query.shape[-1] ** 0.5  # H n n
    return scores.masked_fill(~visible, -torch.inf)


def ring_forward(query, key, value, ids):
    """Causal attention of this worker's queries, at the positions `ids`, to the keys of all workers."""
    output, lse, key_ids = (
        torch.zeros_like(query),
        query.new_full(query.shape[:-1], -torch.inf),
        ids,
    )
    for step in range(dist.get_world_size()):
        if step:
            key, value, key_ids = pass_on(key, value, key_ids)  # to the next, from the one before
        scores = visible_scores(query, key, ids, key_ids)
        block_lse = scores.logsumexp(-1)  # H n
        block = (scores - finite(block_lse)[..., None]).exp() @ value  # H n d
        output, lse = merge(output, lse, block, block_lse)
    return output, lse


def ring_backward(query, key, value, ids, output, lse, gradient):
    """The gradients with respect to query, key and value, from the gradient of the output."""
    by_query, by_key, by_value = (torch.zeros_like(each) for each in (query, key, value))
    delta, key_ids = (gradient * output).sum(-1, keepdim=True), ids  # H n 1
    for _ in range(dist.get_world_size()):
        scores = visible_scores(query, key, ids, key_ids)
        weights = (scores - finite(lse)[..., None]).exp()  # as in one process
        by_scores = weights * (gradient @ value.mT - delta) / query.shape[-1] ** 0.5
        by_query += by_scores @ key
        by_key += by_scores.mT @ query
        by_value += weights.mT @ gradient
        key, value, key_ids, by_key, by_value = pass_on(key, value, key_ids, by_key, by_value)
    return by_query, by_key, by_value


# --- What the workers do --------------------------------------------------------------------------


def whole(length):
    """Query, key, value and the gradient of the output of a whole text, two heads."""
    made = torch.Generator().manual_seed(length)
    return torch.randn(4, 2, length, 8, generator=made, dtype=torch.float64)  # each H L d


def own_part(length, shard):
    """The positions of this worker, and its part of everything; padding is 0."""
    ids = SHARDS[shard](length, rank=dist.get_rank(), world_size=dist.get_world_size())
    return ids, pad(whole(length), (0, 0, 0, 1))[:, :, ids]


def attend(length, shard):
    """Positions, output and gradients of this worker, by the plain form."""
    ids, (query, key, value, gradient) = own_part(length, shard)
    output, lse = ring_forward(query, key, value, ids)
    return ids, output, *ring_backward(query, key, value, ids, output, lse, gradient)


def attend_each(cases):
    """Several texts, one after the other."""
    return [attend(length, shard) for length, shard in cases]


def attend_by_package(length, shard):
    """The same by the package's function and autograd."""
    ids, (*inputs, gradient) = own_part(length, shard)
    inputs = [each[None].requires_grad_() for each in inputs]
    output = ring_attention(*inputs, ids, causal=True)
    output.backward(gradient[None])
    return ids, output.detach()[0], *(each.grad[0] for each in inputs)


def bytes_sent(length):
    """What this worker sends forward and backward."""
    with Messages() as messages:
        attend_by_package(length, "zigzag")
    return messages.total
