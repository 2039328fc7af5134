"""Chunks and their neighbors: torch's attention, scikit-learn's search, brute force, gradients, bad input."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors
from torch import nn

from tested_transformer import reference
from tested_transformer.functional.retrieval import (
    chunk_read_by,
    chunked_cross_attention,
    nearest_neighbors,
    split_chunks,
)
from tested_transformer.layers.chunk_database import ChunkDatabase
from tested_transformer.layers.chunked_cross_attention import ChunkedCrossAttention

LENGTHS = pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 10, 11, 12])


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# --- Chunked cross-attention ----------------------------------------------------------------------


def with_torch(layer, x, neighbors, mask):
    """A loop over chunks with nn.MultiheadAttention and the layer's weights."""
    twin = nn.MultiheadAttention(
        x.shape[-1], layer.num_heads, bias=False, batch_first=True
    ).double()
    with torch.no_grad():
        names = ("query", "key", "value")
        twin.in_proj_weight.copy_(torch.cat([getattr(layer, name).weight for name in names]))
        twin.out_proj.weight.copy_(layer.output.weight)
    output, m = torch.zeros_like(x), layer.chunk_size
    for u in range(neighbors.shape[1]):
        tokens = slice((u + 1) * m - 1, (u + 2) * m - 1)
        read, _ = twin(x[:, tokens], neighbors[:, u], neighbors[:, u], key_padding_mask=~mask[:, u])
        output[:, tokens] = read
    return output


@LENGTHS
def test_the_layer_is_torchs_attention_chunk_by_chunk(length):
    """Values, and gradients by everything that goes in."""
    torch.manual_seed(0)
    layer = ChunkedCrossAttention(6, 3, 4).double()
    x, neighbors = random(2, length, 6), random(2, length // 4, 5, 6, seed=1)
    mask = torch.rand(2, length // 4, 5) < 0.6
    mask[..., 0] = True  # torch gives NaN for a row without any
    given = [x.requires_grad_(), neighbors.requires_grad_()]
    ours, theirs = layer(x, neighbors, mask=mask), with_torch(layer, x, neighbors, mask)
    torch.testing.assert_close(ours, theirs)
    if length >= 4:
        probe = random(*ours.shape, seed=2)
        one, other = (torch.autograd.grad((y * probe).sum(), given) for y in (ours, theirs))
        torch.testing.assert_close(one, other)


@LENGTHS
def test_the_first_tokens_and_chunks_without_neighbors_get_zeros(length):
    layer = ChunkedCrossAttention(6, 3, 4).double()
    nothing = torch.zeros(2, length // 4, 5, dtype=torch.bool)
    x, neighbors = random(2, length, 6), random(2, length // 4, 5, 6, seed=1)
    assert not bool(layer(x, neighbors, mask=nothing).any())
    read = layer(x, neighbors)
    assert not bool(read[:, :3].any())
    assert bool(read[:, 3:].any(-1).all())


def test_the_shift_of_the_batched_form_is_the_formula():
    """Values that name their chunk: token t returns chunk_read_by(t) + 1, and 0 for none."""
    for length in range(14):
        for m in range(1, 6):
            chunks = length // m
            value = torch.arange(1.0, chunks + 1).view(1, 1, chunks, 1, 1)
            found = chunked_cross_attention(
                torch.rand(1, 1, length, 2), torch.rand(1, 1, chunks, 1, 2), value, chunk_size=m
            )
            expected = chunk_read_by(torch.arange(length), m) + 1
            assert found[0, 0, :, 0].tolist() == expected.tolist()


def test_split_chunks_leaves_out_the_rest():
    ids = torch.arange(22).view(2, 11)
    assert split_chunks(ids, 4).tolist() == [[[0, 1, 2, 3], [4, 5, 6, 7]], [[11, 12, 13, 14], [15, 16, 17, 18]]]  # fmt: skip
    assert split_chunks(ids, 12).shape == (2, 0, 12)


# --- Nearest neighbors ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_neighbors_are_those_of_scikit_learn_and_of_brute_force(seed):
    queries, keys = random(20, 5, seed=seed), random(60, 5, seed=seed + 100)
    found = nearest_neighbors(queries, keys, 4)
    exact = NearestNeighbors(n_neighbors=4, algorithm="brute").fit(keys.numpy())
    np.testing.assert_array_equal(found.numpy(), exact.kneighbors(queries.numpy())[1])
    slow = reference.nearest_neighbors(queries.numpy(), keys.numpy(), 4)
    np.testing.assert_array_equal(found.numpy(), slow)


# --- The database ---------------------------------------------------------------------------------


def bag(chunks):
    return nn.functional.one_hot(chunks, 20).sum(1).double()


def test_a_chunk_comes_with_its_continuation_and_never_with_another_documents():
    documents = [torch.tensor([1, 2, 3, 4, 5]), torch.tensor([6, 7, 8, 9])]
    database = ChunkDatabase(documents, bag, chunk_size=2)
    assert database.texts.tolist() == [
        [1, 2, 3, 4], [3, 4, 5, 0], [5, 0, 0, 0], [6, 7, 8, 9], [8, 9, 0, 0],
    ]  # fmt: skip
    assert database.owners.tolist() == [0, 0, 0, 1, 1]


def test_a_document_does_not_find_itself():
    documents = [torch.randint(1, 20, (n,)) for n in (8, 12, 4, 9)]
    database = ChunkDatabase(documents, bag, chunk_size=4)
    for number, document in enumerate(documents):
        chunks = split_chunks(document, 4)
        own = torch.full((len(chunks),), number)
        plain = database.search(chunks, num_neighbors=1)
        assert torch.equal(plain[:, 0, :4], chunks)  # it finds itself
        found = database.search(chunks, num_neighbors=9, document=own)
        others = [row for row, owner in zip(database.texts, database.owners, strict=True) if owner != number]  # fmt: skip
        real = found[found.any(-1)]
        assert {tuple(row.tolist()) for row in real} == {tuple(row.tolist()) for row in others}
    missing = 9 - int((database.owners != 1).sum())
    found = database.search(split_chunks(documents[1], 4), num_neighbors=9, document=torch.tensor([1] * 3))  # fmt: skip
    assert not bool(found[:, -missing:].any())  # padding where there are too few


def test_a_batch_is_searched_as_its_sequences_are():
    database = ChunkDatabase([torch.randint(1, 20, (24,)) for _ in range(3)], bag, chunk_size=4)
    chunks = torch.randint(1, 20, (2, 3, 4))
    found = database.neighbors_of(chunks, num_neighbors=2, document=torch.tensor([0, 2]))
    for row, number in enumerate((0, 2)):
        own = torch.tensor([number] * 3)
        alone = database.search(chunks[row], num_neighbors=2, document=own)
        assert torch.equal(found[row], alone)


@pytest.mark.plain_types
def test_bad_input_is_refused():
    q, k = torch.rand(1, 2, 8, 3), torch.rand(1, 2, 2, 5, 3)
    with pytest.raises(ValueError, match="key: expected neighbors of L // chunk_size = 4 chunks"):
        chunked_cross_attention(q, k, k, chunk_size=2)
    with pytest.raises(ValueError, match="chunk_size: expected at least 1"):
        chunked_cross_attention(q, k, k, chunk_size=0)
    with pytest.raises(ValueError, match="keys: expected"):
        nearest_neighbors(torch.rand(2, 3), torch.rand(4, 2), 1)
    with pytest.raises(ValueError, match="num_neighbors: expected at least 1"):
        nearest_neighbors(torch.rand(2, 3), torch.rand(4, 3), 0)
    with pytest.raises(ValueError, match="documents: expected at least one"):
        ChunkDatabase([], bag, chunk_size=2)
    with pytest.raises(ValueError, match=r"documents\[0\]: expected one axis"):
        ChunkDatabase([torch.ones(2, 3, dtype=torch.long)], bag, chunk_size=2)
    database = ChunkDatabase([torch.arange(6)], bag, chunk_size=2)
    with pytest.raises(ValueError, match="chunks: expected"):
        database.search(torch.ones(1, 3, dtype=torch.long), num_neighbors=1)
    with pytest.raises(ValueError, match="num_heads: expected"):
        ChunkedCrossAttention(6, 4, 2)
