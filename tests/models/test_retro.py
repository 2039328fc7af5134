"""RETRO: a loop over its neighbors, the contract with a search in it, and the two leak tests."""

import pytest
import torch
from torch import nn

from same_numbers import shake
from tested_transformer.experiments.ch22_leaks import leaks, logits_with_search, without_shift
from tested_transformer.functional.retrieval import split_chunks
from tested_transformer.layers.chunk_database import ChunkDatabase
from tested_transformer.models.retro import Retro, RetroConfig
from tested_transformer.specs.adapters import Model, NotApplicable
from tested_transformer.specs.contract import contract

SIZES = {"vocab_size": 13, "chunk_size": 3, "d_model": 12, "num_heads": 3, "max_length": 20}
CONFIG = RetroConfig(**SIZES, num_layers=3, num_retrieval_layers=2)


def bag(chunks):
    return nn.functional.one_hot(chunks, 13).sum(1).double()


def texts(count, length, seed=0):
    return torch.randint(1, 13, (count, length), generator=torch.Generator().manual_seed(seed))


OTHERS = list(texts(6, 9, seed=1))
DATABASE = ChunkDatabase(OTHERS, bag, chunk_size=3)


def small(seed=0, config=CONFIG):
    return shake(Retro(config), seed).double().eval()


class Retrieving(Model):
    """A RETRO that searches the database for whatever it is given."""

    max_length = 20

    def logits(self, ids, mask=None, position_ids=None):
        if mask is not None or position_ids is not None:
            raise NotApplicable(
                "chunks count from the first token: padding is on the right, unmasked"
            )
        neighbors = DATABASE.neighbors_of(split_chunks(ids, 3), num_neighbors=2)
        return self.module(ids, neighbors)


@pytest.mark.plain_types
def test_the_contract_is_kept():
    """Every token is changed and neighbors are searched again: no future leak."""
    report = contract(Retrieving(small(), 13))
    held = {each.name for each in report.results if each.outcome == "holds"}
    assert "no future leak" in held, report
    assert report, report


def test_the_contract_finds_a_chunk_that_reads_its_own_neighbors():
    report = contract(Retrieving(without_shift(small()), 13), only=["no future leak"])
    assert [each.outcome for each in report.results] == ["broken"]


# --- The two leak tests ---------------------------------------------------------------------------

IDS, OTHER = texts(2, 14, seed=3)
ROUNDING = 1e-12  # float64, numbers of the order of 1


def moved(model, *, rebuild, exclude_own=True):
    logits_of = logits_with_search(model, OTHERS, bag, exclude_own=exclude_own)
    return leaks(logits_of, IDS, OTHER, rebuild=rebuild)


def test_the_replaced_text_finds_other_neighbors():
    """If none differed, an output that depends on the neighbors of the future would not change either."""
    found = [
        DATABASE.search(split_chunks(ids[None], 3)[0], num_neighbors=1) for ids in (IDS, OTHER)
    ]
    assert bool((found[0] != found[1]).any())


@pytest.mark.parametrize("rebuild", [False, True])
def test_no_future_is_read(rebuild):
    assert float(moved(small(), rebuild=rebuild).max()) < ROUNDING


@pytest.mark.parametrize("rebuild", [False, True])
def test_own_neighbors_leak_in_both_tests(rebuild):
    assert float(moved(without_shift(small()), rebuild=rebuild).max()) > 1e-3


def test_a_text_that_finds_itself_leaks_only_where_the_database_changes_with_it():
    model = small()
    assert float(moved(model, rebuild=False, exclude_own=False).max()) < ROUNDING
    assert float(moved(model, rebuild=True, exclude_own=False).max()) > 1e-3


# --- What the neighbors do ------------------------------------------------------------------------


def test_without_neighbors_it_is_a_plain_decoder():
    """Neighbors that are all padding change nothing, and nor does leaving them out."""
    model, ids = small(), texts(2, 10)
    nothing = torch.zeros(2, 3, 2, 6, dtype=torch.long)
    torch.testing.assert_close(model(ids, nothing), model(ids))


def test_neighbors_are_read_from_the_last_token_of_their_chunk_on():
    model, ids, neighbors = small(), texts(1, 10), texts(6, 6, seed=5).view(1, 3, 2, 6)
    before = model(ids, neighbors)
    for u in range(3):
        changed = neighbors.clone()
        changed[:, u] = texts(2, 6, seed=6)
        far = (model(ids, changed) - before).abs().amax((0, 2))
        end = (u + 1) * 3 - 1
        assert float(far[:end].max()) < ROUNDING
        assert bool((far[end : end + 3] > 1e-4).all())


def test_the_order_of_the_neighbors_does_not_matter():
    model, ids, neighbors = small(), texts(2, 9), texts(12, 6, seed=5).view(2, 3, 2, 6)
    torch.testing.assert_close(model(ids, neighbors), model(ids, neighbors.flip(2)))


def test_the_encoder_reads_the_chunk_that_retrieved():
    """A neighbor is encoded given its chunk: another first token, other encodings of chunk 0 alone."""
    model, neighbors = small(), texts(6, 6, seed=5).view(1, 3, 2, 6)
    x = torch.randn(1, 9, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    e = torch.randn(1, 3, 2, 6, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    other = x.clone()
    other[:, 0] += 1
    far = (
        (model.encoder(e, neighbors, other) - model.encoder(e, neighbors, x)).abs().amax((0, 2, 3))
    )
    assert float(far[0]) > 1e-4
    assert not bool(far[1:].any())


def test_padding_of_a_neighbor_is_not_read():
    """A neighbor of 4 tokens and 2 of padding, against one of 4."""
    model, ids = small(), texts(2, 9)
    short = texts(12, 4, seed=5).view(2, 3, 2, 4)
    padded = nn.functional.pad(short, (0, 2))
    torch.testing.assert_close(model(ids, padded), model(ids, short))


@pytest.mark.plain_types
def test_bad_input_is_refused():
    model = Retro(CONFIG)
    with pytest.raises(ValueError, match="neighbors of L // chunk_size = 3 chunks"):
        model(texts(1, 9), torch.ones(1, 2, 1, 6, dtype=torch.long))
    with pytest.raises(ValueError, match="ids: expected .*below"):
        model(torch.full((1, 4), 13))
    with pytest.raises(ValueError, match="num_heads: expected"):
        RetroConfig(vocab_size=5, chunk_size=2, d_model=6, num_heads=4)
    with pytest.raises(ValueError, match="num_retrieval_layers: expected"):
        RetroConfig(vocab_size=5, chunk_size=2, num_layers=1, num_retrieval_layers=2)


@pytest.mark.parametrize("length", [1, 2, 3, 5, 6, 8])
def test_a_longer_text_keeps_earlier_outputs(length):
    """Each of its complete chunks retrieves what it did before: so do rows padded on the right."""
    model, ids = Retrieving(small(), 13), texts(2, 9)
    torch.testing.assert_close(model.logits(ids[:, :length]), model.logits(ids)[:, :length])
