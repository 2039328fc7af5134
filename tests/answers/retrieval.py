"""Retrieval in other ways: by counting, by a loop over chunks with torch's own attention, by masks, by heaps."""

import heapq

import torch
from torch.nn import functional

from answers import right, wrong
from tested_transformer.functional.retrieval import (
    chunk_read_by,
    chunked_cross_attention,
    nearest_neighbors,
)

right("chunk_read_by", "the package's")(chunk_read_by)
right("chunked_cross_attention", "the package's")(chunked_cross_attention)
right("nearest_neighbors", "the package's")(nearest_neighbors)

# --- Which chunk a position reads -----------------------------------------------------------------


@right("chunk_read_by", "from the token after it")
def by_the_next_token(position_ids, chunk_size):
    return (position_ids + 1) // chunk_size - 1


@right("chunk_read_by", "by counting last tokens")
def by_counting(position_ids, chunk_size):
    most = int(position_ids.max()) + 1 if position_ids.numel() else 0
    ends = torch.arange(most)[chunk_size - 1 :: chunk_size]
    return (ends <= position_ids[..., None]).sum(-1) - 1


@wrong("chunk_read_by", "counts from 1")
def from_one(position_ids, chunk_size):
    return (position_ids + 1) // chunk_size


@wrong("chunk_read_by", "never -1")
def clamped(position_ids, chunk_size):
    return chunk_read_by(position_ids, chunk_size).clamp(min=0)


# --- Chunked cross-attention ----------------------------------------------------------------------


@right("chunked_cross_attention", "chunk by chunk, with torch's attention")
def by_chunks(query, key, value, *, chunk_size, mask=None):
    output = query.new_zeros(*query.shape[:3], value.shape[-1])
    for chunk in range(key.shape[2]):
        begin = (chunk + 1) * chunk_size - 1
        tokens = slice(begin, begin + chunk_size)
        seen = None if mask is None else mask[:, None, chunk, None]  # B 1 1 R
        read = functional.scaled_dot_product_attention(
            query[:, :, tokens], key[:, :, chunk], value[:, :, chunk], attn_mask=seen
        )
        if seen is not None:  # rows without any key
            read = torch.where(seen.any(-1, keepdim=True), read, 0.0)
        output = output.index_copy(2, torch.arange(len(query[0, 0]))[tokens], read)
    return output


@right("chunked_cross_attention", "all neighbors as keys, and a mask of who may read which")
def by_mask(query, key, value, *, chunk_size, mask=None):
    batch, _, chunks, read, _ = key.shape
    if not chunks:
        return query.new_zeros(*query.shape[:3], value.shape[-1])
    own = (torch.arange(query.shape[2]) + 1) // chunk_size - 1
    seen = own[:, None] == torch.arange(chunks).repeat_interleave(read)  # L NR
    seen = seen if mask is None else seen & mask.reshape(batch, 1, 1, chunks * read)
    scores = query @ key.flatten(2, 3).mT / query.shape[-1] ** 0.5  # B H L NR
    weights = scores.masked_fill(~seen, -1e30).softmax(-1)
    return torch.where(seen, weights, 0.0) @ value.flatten(2, 3)


@wrong("chunked_cross_attention", "every earlier chunk's neighbors are read")
def all_so_far(query, key, value, *, chunk_size, mask=None):
    batch, _, chunks, read, _ = key.shape
    if not chunks:
        return query.new_zeros(*query.shape[:3], value.shape[-1])
    own = (torch.arange(query.shape[2]) + 1) // chunk_size - 1
    seen = own[:, None] >= torch.arange(chunks).repeat_interleave(read)
    seen = seen if mask is None else seen & mask.reshape(batch, 1, 1, chunks * read)
    scores = query @ key.flatten(2, 3).mT / query.shape[-1] ** 0.5
    weights = scores.masked_fill(~seen, -1e30).softmax(-1)
    return torch.where(seen, weights, 0.0) @ value.flatten(2, 3)


@wrong("chunked_cross_attention", "tokens after the last whole chunk get nothing")
def rest_is_zero(query, key, value, *, chunk_size, mask=None):
    output = chunked_cross_attention(query, key, value, chunk_size=chunk_size, mask=mask)
    whole = key.shape[2] * chunk_size
    return torch.cat((output[:, :, :whole], torch.zeros_like(output[:, :, whole:])), 2)


@wrong("chunked_cross_attention", "the neighbors get no gradient")
def frozen(query, key, value, *, chunk_size, mask=None):
    key, value = key.detach(), value.detach()
    return chunked_cross_attention(query, key, value, chunk_size=chunk_size, mask=mask)


# --- Nearest neighbors ----------------------------------------------------------------------------


@right("nearest_neighbors", "a heap for each query")
def by_heap(queries, keys, num_neighbors, *, allowed=None):
    rows = []
    for q, query in enumerate(queries):
        left = (
            (float((query - key).square().sum()), s)
            for s, key in enumerate(keys)
            if allowed is None or allowed[q, s]
        )
        found = [s for _, s in heapq.nsmallest(num_neighbors, left)]
        rows.append(found + [-1] * (num_neighbors - len(found)))
    return torch.tensor(rows, dtype=torch.long).view(-1, num_neighbors)


@wrong("nearest_neighbors", "the cosine instead of the distance")
def by_cosine(queries, keys, num_neighbors, *, allowed=None):
    queries, keys = functional.normalize(queries, dim=-1), functional.normalize(keys, dim=-1)
    return nearest_neighbors(queries, keys, num_neighbors, allowed=allowed)


@wrong("nearest_neighbors", "the nearest comes last")
def reversed_order(queries, keys, num_neighbors, *, allowed=None):
    return nearest_neighbors(queries, keys, num_neighbors, allowed=allowed).flip(-1)


@wrong("nearest_neighbors", "key 0 where there is none")
def first_for_none(queries, keys, num_neighbors, *, allowed=None):
    return nearest_neighbors(queries, keys, num_neighbors, allowed=allowed).clamp(min=0)
