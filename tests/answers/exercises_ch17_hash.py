"""Chapter 17, which keys LSH attention reads: by places, by the package's counts, by loops over chunks."""

import itertools

import torch

from tested_transformer.mixers.lsh import lsh_read_counts

from . import right, wrong


@right("ch17.lsh_reads", "by places")
def by_places(buckets, chunk_size):
    chunks = torch.argsort(torch.argsort(buckets, stable=True)) // chunk_size
    steps = chunks[:, None] - chunks[None, :]
    return (steps >= 0) & (steps < 2) & buckets[:, None].eq(buckets)


@right("ch17.lsh_reads", "the package's counts")
def by_counts(buckets, chunk_size):
    return lsh_read_counts(buckets[None, None, None], chunk_size=chunk_size)[0, 0] > 0


@right("ch17.lsh_reads", "chunk by chunk")
def by_chunks(buckets, chunk_size):
    reads = torch.zeros(len(buckets), len(buckets), dtype=torch.bool)
    chunks = [
        torch.empty(0, dtype=torch.long),
        *buckets.sort(stable=True).indices.split(chunk_size),
    ]
    for before, own in itertools.pairwise(chunks):
        for i in own:
            for j in torch.cat((before, own)):
                reads[i, j] = buckets[i] == buckets[j]
    return reads


@wrong("ch17.lsh_reads", "rows and columns are swapped")
def transposed(buckets, chunk_size):
    return by_places(buckets, chunk_size).T


@wrong("ch17.lsh_reads", "two chunks before")
def two_before(buckets, chunk_size):
    return (
        lsh_read_counts(buckets[None, None, None], chunk_size=chunk_size, chunks_before=2)[0, 0] > 0
    )
