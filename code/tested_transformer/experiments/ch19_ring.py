"""Ring attention in its plainest form, and what the workers of chapter 19's pages about it do."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.functional import pad, scaled_dot_product_attention

from ..analysis.parallel_costs import Messages
from ..distributed.ring_attention import contiguous_shard, ring_attention, zigzag_shard

SHARDS = {"contiguous": contiguous_shard, "zigzag": zigzag_shard}


# --- The plain form -------------------------------------------------------------------------------


def finite(lse):
    """0 in place of -inf, the log-sum-exp of no keys: -inf - (-inf) would be NaN."""
    return lse.masked_fill(lse == -torch.inf, 0.0)


def merge(output, lse, other_output, other_lse):
    """Attention to two sets of keys from the attention to each."""
    new = torch.logaddexp(lse, other_lse)
    weight, other_weight = ((each - finite(new)).exp()[..., None] for each in (lse, other_lse))
    return weight * output + other_weight * other_output, new


def visible_scores(query, key, query_ids, key_ids):
    """Scaled scores; -inf where the key is later than the query, or padding (position -1)."""
    visible = (key_ids <= query_ids[:, None]) & (key_ids >= 0)
    scores = query @ key.mT / query.shape[-1] ** 0.5  # H n n
    return scores.masked_fill(~visible, -torch.inf)


def attend(query, key, value, query_ids, key_ids):
    """Causal attention to some of the keys: the output, and the log-sum-exp of the scores."""
    scores = visible_scores(query, key, query_ids, key_ids)
    lse = scores.logsumexp(-1)  # H n
    weights = (scores - finite(lse)[..., None]).exp()
    return weights @ value, lse


def pass_on(*tensors):
    """Send tensors to the next worker, and return those that the one before has sent."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    received = [torch.empty_like(tensor) for tensor in tensors]
    sending = [dist.isend(tensor, (rank + 1) % world_size) for tensor in tensors]
    for tensor in received:
        dist.recv(tensor, (rank - 1) % world_size)
    for message in sending:
        message.wait()
    return received


def ring_forward(query, key, value, ids):
    """Causal attention of this worker's queries, at the positions `ids`, to the keys of all workers."""
    key_ids = ids
    output, lse = attend(query, key, value, ids, key_ids)  # step 0: this worker's own keys
    for _ in range(1, dist.get_world_size()):
        key, value, key_ids = pass_on(key, value, key_ids)
        output, lse = merge(output, lse, *attend(query, key, value, ids, key_ids))
    return output, lse


def ring_backward(query, key, value, ids, output, lse, grad_output):
    """The gradients with respect to query, key and value."""
    grad_query, grad_key, grad_value = (torch.zeros_like(each) for each in (query, key, value))
    delta = (grad_output * output).sum(-1, keepdim=True)  # H n 1
    key_ids = ids
    for _ in range(dist.get_world_size()):
        scores = visible_scores(query, key, ids, key_ids)
        weights = (scores - finite(lse)[..., None]).exp()
        grad_scores = weights * (grad_output @ value.mT - delta) / query.shape[-1] ** 0.5
        grad_query += grad_scores @ key
        grad_key += grad_scores.mT @ query
        grad_value += weights.mT @ grad_output
        key, value, key_ids, grad_key, grad_value = pass_on(
            key, value, key_ids, grad_key, grad_value
        )
    return grad_query, grad_key, grad_value


# --- What the workers do --------------------------------------------------------------------------


def whole(length):
    """Query, key, value and the gradient of the output of a whole sequence, two heads."""
    made = torch.Generator().manual_seed(length)
    return torch.randn(4, 2, length, 8, generator=made, dtype=torch.float64)  # each H L d


def own_part(length, shard):
    """The positions of this worker, and its part of everything; padding is 0."""
    ids = SHARDS[shard](length, rank=dist.get_rank(), world_size=dist.get_world_size())
    return ids, pad(whole(length), (0, 0, 0, 1))[:, :, ids]


def forward_and_backward(length, shard):
    """Positions of this worker, and its output and gradients by the plain form."""
    ids, (query, key, value, gradient) = own_part(length, shard)
    output, lse = ring_forward(query, key, value, ids)
    return ids, torch.stack([output, *ring_backward(query, key, value, ids, output, lse, gradient)])


def by_package(length, shard):
    """The same by the package's function and autograd."""
    ids, (*inputs, gradient) = own_part(length, shard)
    inputs = [each[None].requires_grad_() for each in inputs]
    output = ring_attention(*inputs, ids, causal=True)
    output.backward(gradient[None])
    return ids, torch.stack([output.detach()[0], *(each.grad[0] for each in inputs)])


def gathered(results, length):
    """Output and gradients of the whole sequence from those of the workers; NaN where one is missing."""
    full = torch.full((4, 2, length, 8), torch.nan, dtype=torch.float64)
    for ids, parts in results:
        full[:, :, ids[ids >= 0]] = parts[:, :, ids >= 0]
    return full


def in_one_process(length):
    """Output and gradients of PyTorch's attention to the whole sequence."""
    *inputs, gradient = (each.requires_grad_() for each in whole(length).unbind())
    output = scaled_dot_product_attention(*inputs, is_causal=True)
    return torch.stack([output.detach(), *torch.autograd.grad(output, inputs, gradient)])


def bytes_sent(length):
    """What this worker sends forward and backward."""
    with Messages() as messages:
        forward_and_backward(length, "zigzag")
    return messages.total


def visible_per_step(shard, length, world_size):
    """How many scores each worker has to compute in each step of the ring: (worker, step)."""
    ids = [SHARDS[shard](length, rank=r, world_size=world_size) for r in range(world_size)]
    visible = [[(key <= query[:, None]).sum() for key in ids] for query in ids]  # by their owners
    ranks = range(world_size)
    return torch.tensor([[visible[r][(r - s) % world_size] for s in ranks] for r in ranks])
