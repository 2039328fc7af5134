"""The answers to the exercises of chapter 22's main page."""

import torch
from torch.nn import functional

from answers import right, wrong
from answers.retrieval import all_so_far, by_chunks, by_cosine, by_heap, by_mask, rest_is_zero
from tested_transformer.exercises.ch22_core import database_texts
from tested_transformer.functional.retrieval import chunked_cross_attention, nearest_neighbors


def numbered(formula):
    """The chunk size as the fourth argument."""

    def call(query, key, value, chunk_size):
        return formula(query, key, value, chunk_size=chunk_size)

    return call


# --- Chunks and what comes after them -------------------------------------------------------------

right("ch22.database_texts", "each chunk beside the next")(database_texts)


@right("ch22.database_texts", "windows of two chunks")
def by_windows(document, chunk_size, pad_id):
    missing = -len(document) % chunk_size + chunk_size
    padded = functional.pad(document, (0, missing), value=pad_id)
    return padded.unfold(0, 2 * chunk_size, chunk_size)


@wrong("ch22.database_texts", "the rest of the document is lost")
def rest_is_lost(document, chunk_size, pad_id):
    whole = len(document) // chunk_size * chunk_size
    return database_texts(document[:whole], chunk_size, pad_id)


@wrong("ch22.database_texts", "the last chunk is left out")
def last_is_left_out(document, chunk_size, pad_id):
    return database_texts(document, chunk_size, pad_id)[:-1]


# --- Neighbors ------------------------------------------------------------------------------------

right("ch22.nearest_neighbors", "the package's")(nearest_neighbors)
right("ch22.nearest_neighbors", "a heap for each query")(by_heap)
wrong("ch22.nearest_neighbors", "the cosine instead of the distance")(by_cosine)


@right("ch22.nearest_neighbors", "topk would do but for ties: argsort")
def by_argsort(queries, keys, num_neighbors):
    distance = (queries[:, None] - keys).pow(2).sum(-1)
    return distance.argsort(dim=-1, stable=True)[:, :num_neighbors]


@wrong("ch22.nearest_neighbors", "distances instead of numbers")
def distances(queries, keys, num_neighbors):
    return (queries[:, None] - keys).pow(2).sum(-1).sort(-1).values[:, :num_neighbors]


# --- Chunked cross-attention ----------------------------------------------------------------------

right("ch22.chunked_cross_attention", "the package's")(numbered(chunked_cross_attention))
right("ch22.chunked_cross_attention", "chunk by chunk")(numbered(by_chunks))
right("ch22.chunked_cross_attention", "by a mask")(numbered(by_mask))
wrong("ch22.chunked_cross_attention", "all chunks so far")(numbered(all_so_far))
wrong("ch22.chunked_cross_attention", "the rest is zero")(numbered(rest_is_zero))


@wrong("ch22.chunked_cross_attention", "the key of another head")
def rolled_heads(query, key, value, chunk_size):
    return chunked_cross_attention(query, key.roll(1, 1), value, chunk_size=chunk_size)


@wrong("ch22.chunked_cross_attention", "no gradient to the values")
def detached(query, key, value, chunk_size):
    with torch.no_grad():
        value = value.clone()
    return chunked_cross_attention(query, key, value, chunk_size=chunk_size)
