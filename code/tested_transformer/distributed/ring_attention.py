"""Ring attention: each worker has a part of the sequence; keys and values go around, queries stay.

No worker ever holds the whole sequence. What it has seen of the keys so far is kept as in chapter 15, a
maximum, a sum and an accumulator per query, and merged with what the next keys give.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..bounds import AtLeast, NonNegativeInt, PositiveInt, Where
from ..functional.online_softmax import Partial, empty_state, merge, normalize, partial_softmax
from ..shapes import checked

__all__ = ["contiguous_shard", "pass_on", "ring_attention", "zigzag_shard"]

Connected = Where("a call in a worker of a process group", lambda _: dist.is_initialized())


# --- Who has which tokens -------------------------------------------------------------------------


@checked
def contiguous_shard(
    length: NonNegativeInt, *, rank: NonNegativeInt, world_size: PositiveInt
) -> Int[Tensor, " n"]:
    """The positions of a worker that has one stretch of the sequence; -1, no token, past its end.

    Under a causal mask the last of many workers computes nearly twice the average, and in each step of the ring
    some worker has a full block, for which the others wait.

    Shapes: -> (n), n even and the same for all workers.
    Raises: TypeError or ValueError that name the argument.

    >>> [contiguous_shard(7, rank=n, world_size=2).tolist() for n in (0, 1)]
    [[0, 1, 2, 3], [4, 5, 6, -1]]
    """
    size = -(-length // (2 * world_size))  # of a chunk: each worker has two
    return _inside(2 * rank * size + torch.arange(2 * size), length)


@checked
def zigzag_shard(
    length: NonNegativeInt, *, rank: NonNegativeInt, world_size: PositiveInt
) -> Int[Tensor, " n"]:
    """The positions of a worker that has one chunk from the front and one from the back; -1 is no token.

    An early chunk sees few keys and a late one many: where 2 world_size divides the length, every worker has the same
    to do, in each step of the ring.

    Shapes: -> (n), n even and the same for all workers.
    Raises: TypeError or ValueError that name the argument.
    Source: zhuzilin/ring-flash-attention, README.

    >>> [zigzag_shard(8, rank=n, world_size=2).tolist() for n in (0, 1)]
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    """
    size = -(-length // (2 * world_size))
    chunks = torch.tensor([[rank], [2 * world_size - 1 - rank]])
    return _inside((chunks * size + torch.arange(size)).flatten(), length)


def _inside(positions: Tensor, length: int) -> Tensor:
    return positions.where(positions < length, -1)


# --- Around the ring ------------------------------------------------------------------------------


@checked
def pass_on(*tensors: Annotated[Tensor, Connected]) -> list[Tensor]:
    """Send tensors to the next worker, and give those that the one before has sent.

    Shapes: any, the same on every worker.
    Raises: TypeError or ValueError that name the argument.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    if world == 1:
        return list(tensors)
    received = [torch.empty_like(tensor).contiguous() for tensor in tensors]
    messages = []
    for tag, (mine, theirs) in enumerate(zip(tensors, received, strict=True)):
        messages.append(dist.P2POp(dist.isend, mine.contiguous(), (rank + 1) % world, tag=tag))
        messages.append(dist.P2POp(dist.irecv, theirs, (rank - 1) % world, tag=tag))
    for message in dist.batch_isend_irecv(messages):
        message.wait()
    return received


@checked
def ring_attention(
    query: Annotated[Float[Tensor, "B H n d"], Connected],
    key: Float[Tensor, "B H n d"],
    value: Float[Tensor, "B H n dv"],
    positions: Annotated[Int[Tensor, " n"], AtLeast(-1)],
    *,
    causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "B H n dv"]:
    """Attention over a sequence of which each worker has the tokens at its `positions`.

    Every worker calls it at the same time with equally many tokens. A position of -1 is padding: nobody
    attends to it, and its own output is 0. Gradients go around the ring a second time.

    scale: of the scores, 1 / sqrt(d) by default.

    Shapes: query and key (B, H, n, d), value (B, H, n, dv), positions (n) -> (B, H, n, dv).
    Raises: TypeError or ValueError that name the argument.
    Source: Liu et al. 2023 (Ring Attention), section 3; Dao 2023, algorithms 1 and 2, for the arithmetic.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return _Ring.apply(query, key, value, positions, causal, scale)


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query, key, value, positions, causal, scale):
        output, lse = ring_forward(query, key, value, positions, causal=causal, scale=scale)
        ctx.save_for_backward(query, key, value, positions, output, lse)
        ctx.options = {"causal": causal, "scale": scale}
        return output.to(query.dtype)

    @staticmethod
    def backward(ctx: Any, gradient):
        found = ring_backward(*ctx.saved_tensors, gradient, **ctx.options)
        pairs = zip(found, ctx.saved_tensors, strict=False)
        return *(each.to(tensor.dtype) for each, tensor in pairs), None, None, None


def ring_forward(
    query: Tensor, key: Tensor, value: Tensor, positions: Tensor, *, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp of this worker's queries, in at least float32."""
    query, ids = _wide(query) * scale, positions
    states = [empty_state(query[..., at, :], value.shape[-1]) for at in halves(query)]
    for step in range(dist.get_world_size()):
        if step:
            key, value, ids = pass_on(key, value, ids)
        for n, rows in enumerate(halves(query)):
            for cols in halves(key):
                visible = may_attend(positions[rows], ids[cols], causal)
                if visible.any():
                    scores = query[..., rows, :] @ _wide(key[..., cols, :]).mT
                    scores = scores.masked_fill(~visible, -math.inf)
                    found = partial_softmax(scores, _wide(value[..., cols, :]))
                    states[n] = merge(states[n], found)
    outputs, sums = zip(*(normalize(Partial(*state)) for state in states), strict=True)
    return torch.cat(outputs, -2), torch.cat(sums, -1)


def ring_backward(
    query: Tensor, key: Tensor, value: Tensor, positions: Tensor, output: Tensor, lse: Tensor,
    gradient: Tensor, *, causal: bool, scale: float,
) -> list[Tensor]:  # fmt: skip
    """The gradients with respect to query, key and value; those of keys travel with their keys, and home."""
    query, gradient, ids = _wide(query), _wide(gradient), positions
    by_query, by_key, by_value = (torch.zeros_like(_wide(each)) for each in (query, key, value))
    delta = (gradient * output).sum(-1, keepdim=True)  # B H n 1
    for _ in range(dist.get_world_size()):
        for rows in halves(query):
            for cols in halves(key):
                visible = may_attend(positions[rows], ids[cols], causal)
                if visible.any():
                    q, g = query[..., rows, :], gradient[..., rows, :]
                    k, v = _wide(key[..., cols, :]), _wide(value[..., cols, :])
                    scores = (q @ k.mT * scale).masked_fill(~visible, -math.inf)
                    weights = torch.exp(scores - lse[..., rows, None])
                    by_scores = weights * (g @ v.mT - delta[..., rows, :]) * scale
                    by_query[..., rows, :] += by_scores @ k
                    by_key[..., cols, :] += by_scores.mT @ q
                    by_value[..., cols, :] += weights.mT @ g
        key, value, ids, by_key, by_value = pass_on(key, value, ids, by_key, by_value)
    return [by_query, by_key, by_value]


def may_attend(
    query_ids: Int[Tensor, " n"], key_ids: Int[Tensor, " m"], causal: bool
) -> Bool[Tensor, "n m"]:
    """True where neither is padding and, with causal, the key is not in the future."""
    visible = (query_ids[:, None] >= 0) & (key_ids >= 0)
    return visible & (key_ids <= query_ids[:, None]) if causal else visible


def halves(tensor: Tensor) -> list[slice]:
    """The two chunks of a shard: of keys in the future of all queries a chunk is skipped as a whole."""
    middle = tensor.shape[-2] // 2
    return [slice(0, middle), slice(middle, None)] if middle else [slice(None)]


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
