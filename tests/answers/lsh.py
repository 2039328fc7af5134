"""LSH attention by full attention with counts, by boolean masks, and by lists in loops."""

import torch

from answers import right, wrong
from tested_transformer import attention
from tested_transformer.mixers.lsh import lsh_attention, lsh_buckets, lsh_keys, lsh_read_counts

right("lsh_buckets", "the package's")(lsh_buckets)
right("lsh_attention", "the package's")(lsh_attention)


@right("lsh_buckets", "the largest size and its sign")
def by_size(vectors, rotations, *, key_mask=None):
    rotated = torch.einsum("bhld,hdrk->bhrlk", vectors, rotations)
    axis = rotated.abs().argmax(-1, keepdim=True)
    negative = rotated.gather(-1, axis)[..., 0] < 0
    buckets = axis[..., 0] + rotations.shape[-1] * negative
    if key_mask is not None:
        buckets = torch.where(key_mask[:, None, None, :], buckets, 2 * rotations.shape[-1])
    return buckets


@right("lsh_buckets", "a matrix product for each round")
def by_rounds(vectors, rotations, *, key_mask=None):
    rounds = []
    for rotation in rotations.unbind(2):  # H d r
        rounds.append((vectors @ torch.cat((rotation, -rotation), -1)).max(-1).indices)
    buckets = torch.stack(rounds, 2)
    if key_mask is not None:
        buckets[(~key_mask)[:, None, None].expand_as(buckets)] = 2 * rotations.shape[-1]
    return buckets


@right("lsh_attention", "full attention with the logarithms of the counts")
def by_counts(query, value, buckets, *, chunk_size, causal=False, key_mask=None, **options):
    counts = lsh_read_counts(buckets, chunk_size=chunk_size, **options)
    bias = counts.to(query.dtype).log()
    own = torch.eye(query.shape[2], dtype=torch.bool)
    # A query that is its key: its score is subtracted, and -1e5 takes its place.
    scores = query @ lsh_keys(query).mT / query.shape[-1] ** 0.5
    bias = torch.where(own, bias - 1e5 - scores, bias)
    mask = None if key_mask is None else key_mask[:, None, None]
    return attention(query, lsh_keys(query), value, bias=bias, mask=mask, causal=causal)


@right("lsh_attention", "token by token, over the list of its keys")
def by_lists(
    query, value, buckets, *, chunk_size, chunks_before=1, chunks_after=0, causal=False, key_mask=None,
    form="paper",
):  # fmt: skip
    options = {"chunks_before": chunks_before, "chunks_after": chunks_after, "form": form}
    counts = lsh_read_counts(buckets, chunk_size=chunk_size, **options)
    keys = query / (query.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    rows = []
    for b in range(len(query)):
        for h in range(query.shape[1]):
            for i in range(query.shape[2]):
                found = [
                    j
                    for j in range(query.shape[2])
                    for _ in range(int(counts[b, h, i, j]))
                    if not (causal and j > i) and (key_mask is None or key_mask[b, j])
                ]
                others = [j for j in found if j != i] or found
                scores = keys[b, h, others] @ query[b, h, i] / query.shape[-1] ** 0.5
                rows.append(scores.softmax(0) @ value[b, h, others])
    return torch.stack(rows).view_as(value) if rows else value * 1.0


@wrong("lsh_buckets", "the axes of the second half come first")
def halves_swapped(vectors, rotations, *, key_mask=None):
    return lsh_buckets(-vectors, rotations, key_mask=key_mask)


@wrong("lsh_attention", "the keys are detached")
def keys_detached(query, value, buckets, *, causal=False, key_mask=None, **options):
    counts = lsh_read_counts(buckets, **options)
    bias = counts.to(query.dtype).log().masked_fill(torch.eye(query.shape[2]).bool(), -1e5)
    mask = None if key_mask is None else key_mask[:, None, None]
    key = lsh_keys(query).detach()
    return attention(query, key, value, bias=bias, mask=mask, causal=causal)


@wrong("lsh_attention", "scores are not scaled")
def unscaled(query, value, buckets, **options):
    return lsh_attention(query * query.shape[-1] ** 0.5, value, buckets, **options)


@wrong("lsh_attention", "the form is always the paper's")
def always_paper(query, value, buckets, *, form="paper", **options):
    return lsh_attention(query, value, buckets, **options)
