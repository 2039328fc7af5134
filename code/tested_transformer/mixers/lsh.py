"""LSH attention: tokens are hashed and sorted by bucket, and a query reads the keys next to it."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from ..bounds import AtLeast, NonNegativeInt, PositiveInt
from ..functional.masks import masked_softmax
from ..shapes import checked

__all__ = ["lsh_attention", "lsh_buckets", "lsh_keys", "lsh_read_counts"]

Buckets = Annotated[Int[Tensor, "B H R L"], AtLeast(0)]
Form = Literal["paper", "trax"]

OWN_SCORE = -1e5  # of a token with itself: it counts only where no other key does
LAST_BUCKET = 2**62  # of what fills the last chunk


# --- Hashing --------------------------------------------------------------------------------------


@checked
def lsh_buckets(
    vectors: Float[Tensor, "B H L d"],
    rotations: Float[Tensor, "H d R r"],
    *,
    key_mask: Bool[Tensor, "B L"] | None = None,
) -> Int[Tensor, "B H R L"]:
    """The bucket of each token in each of R rounds of hashing: the argmax of [x R, -x R].

    Vectors of nearly one direction often share a bucket; norms do not matter. There are 2 r buckets.
    Padding, where key_mask is False, gets one more for itself, the last.

    Shapes: vectors (B, H, L, d), rotations (H, d, R, r) of standard normal numbers, key_mask (B, L)
        -> (B, H, R, L), integers without a gradient.
    Raises: TypeError or ValueError that name the argument.
    Source: Kitaev et al. 2020 (Reformer); padding: huggingface/transformers pull request 5560.
    """
    rotated = torch.einsum("bhld,hdrk->bhrlk", vectors.detach(), rotations)
    buckets = torch.cat((rotated, -rotated), -1).argmax(-1)  # B H R L
    if key_mask is not None:
        buckets = buckets.masked_fill(~key_mask[:, None, None], 2 * rotations.shape[-1])
    return buckets


@checked
def lsh_keys(query: Float[Tensor, "B H L d"]) -> Float[Tensor, "B H L d"]:
    """The keys that go with shared queries: the same directions, all of norm sqrt(d).

    Shapes: (B, H, L, d) -> (B, H, L, d).
    Raises: TypeError or ValueError that name the argument.
    Source: Kitaev et al. 2020 (Reformer); the eps of 1e-6: transformers, LSHSelfAttention.
    """
    return functional.rms_norm(query, query.shape[-1:], eps=1e-6)


# --- The fast form --------------------------------------------------------------------------------


@checked
def lsh_attention(
    query: Float[Tensor, "B H L d"],
    value: Float[Tensor, "B H L dv"],
    buckets: Buckets,
    *,
    chunk_size: PositiveInt,
    chunks_before: NonNegativeInt = 1,
    chunks_after: NonNegativeInt = 0,
    causal: bool = False,
    key_mask: Bool[Tensor, "B L"] | None = None,
    form: Form = "paper",
) -> Float[Tensor, "B H L dv"]:
    """Attention among the tokens that hashing brings together. The queries are the keys as well.

    In each round the tokens are sorted by bucket, then by position, and split into chunks. A query reads
    its own chunk and the neighbors. A token reads itself only where it finds nothing else.
    form: "paper" reads keys of the query's own bucket alone, and counts a key once that several
    rounds find. "trax", which transformers has too, reads all keys of the chunks, counts a key in
    every round, and the chunks of all rounds form a ring: the first comes after the last.

    Shapes: query (B, H, L, d), value (B, H, L, dv), buckets (B, H, R, L), key_mask (B, L) -> (B, H, L, dv).
    Raises: TypeError or ValueError that name the argument.
    Source: Kitaev et al. 2020 (Reformer); the other form: transformers, LSHSelfAttention.
    """
    length, reach = query.shape[2], (chunks_before, chunks_after)
    query, value, buckets, real = _whole_chunks(query, value, buckets, key_mask, chunk_size)
    order = buckets.argsort(dim=-1, stable=True)  # B H R L: the token at each index
    ids = order.unflatten(-1, (order.shape[-1] // chunk_size, chunk_size))  # B H R n m: n chunks
    key_ids = _neighbors(ids, reach, ring=form == "trax")  # B H R n w, -1 where there is none

    times = ids.new_ones(())  # how many rounds find a key, where that counts
    allowed = (_take(real, key_ids) & (key_ids >= 0))[..., None, :].expand(*ids.shape, -1)
    if causal:
        allowed = allowed & (key_ids[..., None, :] <= ids[..., None])
    if form == "paper":
        same, times = _times_found(buckets, order, ids, key_ids, reach)  # B H R n m w each
        allowed = allowed & same
    output, log_sum = _attend(query, value, ids, key_ids, allowed, times)
    return _combine(output, log_sum, order)[:, :, :length].to(query.dtype)


def _attend(query, value, ids, key_ids, allowed, times) -> tuple[Tensor, Tensor]:
    """Attention of each chunk to its keys, and the logarithm of each query's sum of exponentials.

    Where no key is allowed the output is 0 and the logarithm -inf.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    keys = _take(lsh_keys(query).to(wide), key_ids)  # B H R n w d
    scores = _take(query.to(wide), ids) @ keys.mT / query.shape[-1] ** 0.5  # B H R n m w
    scores = scores - times.clamp(min=1).to(wide).log()
    scores = scores.masked_fill(ids[..., None] == key_ids[..., None, :], OWN_SCORE)
    output = masked_softmax(scores, allowed) @ _take(value.to(wide), key_ids)  # B H R n m dv
    empty = ~allowed.any(-1)
    scores = scores.masked_fill(
        ~allowed & ~empty[..., None], -torch.inf
    )  # all -inf has no gradient
    return output, scores.logsumexp(-1).masked_fill(empty, -torch.inf)


def _combine(output: Tensor, log_sum: Tensor, order: Tensor) -> Tensor:
    """The outputs of all rounds, (B, H, R, n, m, dv), in the order of the text, in proportion to their sums."""
    places = order.argsort(-1)  # B H R L: where each token is
    log_sum = log_sum.flatten(3).gather(-1, places).mT  # B H L R
    shares = masked_softmax(log_sum, log_sum > -torch.inf)
    output = output.flatten(3, 4).take_along_dim(places[..., None], 3)  # B H R L dv
    return torch.einsum("bhlr,bhrlv->bhlv", shares, output)


def _whole_chunks(query, value, buckets, key_mask, chunk_size) -> tuple[Tensor, ...]:
    """As many tokens as fill the chunks: those added are no keys, and come last. The mask: (B, H, L)."""
    length = query.shape[2]
    extra = -length % chunk_size
    real = query.new_ones(len(query), length, dtype=torch.bool) if key_mask is None else key_mask
    real = functional.pad(real, (0, extra))[:, None].expand(-1, query.shape[1], -1)
    query, value = (functional.pad(each, (0, 0, 0, extra)) for each in (query, value))
    return query, value, functional.pad(buckets, (0, extra), value=LAST_BUCKET), real


def _neighbors(ids: Tensor, reach: tuple[int, int], *, ring: bool = False) -> Tensor:
    """For each chunk of (B, H, R, n, m) those before it, itself and those after it, side by side.

    Beyond the ends of a round there is -1, in a ring the next round.
    """
    before, after = reach
    if ring:
        line = ids.flatten(2, 3)  # B H R*n m
        steps = [line.roll(-step, 2) for step in range(-before, after + 1)]
        return torch.cat(steps, -1).unflatten(2, ids.shape[2:4])
    padded = functional.pad(ids, (0, 0, before, after), value=-1)
    return torch.cat([padded[:, :, :, s : s + ids.shape[3]] for s in range(before + after + 1)], -1)


def _take(x: Tensor, ids: Tensor) -> Tensor:
    """The rows of x, (B, H, L, ...), with these token IDs, (B, H, R, n, m); any row for -1."""
    flat = ids.clamp(min=0).flatten(2)
    rows = x.take_along_dim(flat if x.ndim == 3 else flat[..., None], 2)
    return rows.unflatten(2, ids.shape[2:])


def _times_found(buckets, order, ids, key_ids, reach) -> tuple[Tensor, Tensor]:
    """Whether query and key share a bucket in this round, and in how many rounds the query finds the key."""
    before, after = reach
    places = order.argsort(-1) // ids.shape[-1]  # B H R L: the chunk of each token
    this_round, found = [], places.new_zeros(())
    for r in range(buckets.shape[2]):
        bucket, place = buckets[:, :, r], places[:, :, r]  # B H L
        same = _take(bucket, ids)[..., None] == _take(bucket, key_ids)[..., None, :]
        steps = _take(place, key_ids)[..., None, :] - _take(place, ids)[..., None]
        this_round.append(same[:, :, r])
        found = found + (same & (steps >= -before) & (steps <= after))
    return torch.stack(this_round, 2), found


# --- The dense twin -------------------------------------------------------------------------------


@checked
def lsh_read_counts(
    buckets: Buckets,
    *,
    chunk_size: PositiveInt,
    chunks_before: NonNegativeInt = 1,
    chunks_after: NonNegativeInt = 0,
    form: Form = "paper",
) -> Int[Tensor, "B H L L"]:
    """How often each query reads each key in `lsh_attention` without a mask: 0, or 1 in the paper's form.

    Full attention whose scores have the logarithms of these counts added gives the same outputs. For
    pictures and tests: L^2 numbers.

    Shapes: buckets (B, H, R, L) -> (B, H, L, L).
    Raises: TypeError or ValueError that name the argument.
    Source: Kitaev et al. 2020 (Reformer); the other form: transformers, LSHSelfAttention.
    """
    rounds, length = buckets.shape[2:]
    chunks = -(-length // chunk_size)  # per round
    places = buckets.argsort(dim=-1, stable=True).argsort(-1) // chunk_size  # B H R L
    places = places + chunks * torch.arange(rounds, device=buckets.device)[:, None]
    steps = (
        places[:, :, None, :, None, :] - places[:, :, :, None, :, None]
    )  # B H R R L L, query first
    near = range(-chunks_before, chunks_after + 1)
    if form == "trax":
        return sum((((steps - s) % (chunks * rounds)) == 0).sum((2, 3)) for s in near)
    same = buckets[..., None] == buckets[..., None, :]  # B H R L L
    steps = steps.diagonal(dim1=2, dim2=3).movedim(-1, 2)
    return (same & (steps >= near[0]) & (steps <= near[-1])).any(2).long()
