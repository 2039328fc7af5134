"""T5's buckets: transformers' over a grid of lengths, the Spec, a cache, and what is refused."""

import pytest
import torch

from tested_transformer import MultiHeadAttention, T5Positions, judge, t5_buckets
from tested_transformer.layers.cache import KeyValueCache
from tested_transformer.specs.t5_buckets.spec import T5_BIAS


@pytest.mark.parametrize("right", [T5Positions, T5_BIAS.baseline], ids=["class", "formula"])
def test_right_implementations_pass(right):
    verdict = judge(T5_BIAS, right)
    assert verdict.passed, verdict
    assert not verdict.skipped


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("num_buckets", [4, 7, 8, 20, 32, 33, 128])
def test_transformers_buckets(num_buckets, bidirectional):
    """Every distance up to 700 back and forth, in float32 theirs and in float64 ours."""
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distance = torch.arange(-700, 701)
    for max_distance in (40, 64, 128, 1000):
        options = {
            "num_buckets": num_buckets, "max_distance": max_distance,
            "bidirectional": bidirectional,
        }  # fmt: skip
        if max_distance <= num_buckets // (4 if bidirectional else 2):
            continue
        theirs = t5.T5Attention._relative_position_bucket(distance, **options)
        ours = t5_buckets(torch.tensor([700]), distance + 700, **options)[0]
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("chunk", [1, 2, 7])
def test_a_cache_changes_no_bias(chunk):
    """candle forgot what the cache holds (pull request 899): the last query is at the last key."""
    positions = T5Positions(3, num_buckets=8, max_distance=20, bidirectional=False).double()
    attention = MultiHeadAttention(12, 3, positions=positions).double()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 30, 12, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        positions.table.normal_(generator=generator)
        whole, cache = attention(x, causal=True), KeyValueCache()
        pieces = [attention(piece, causal=True, cache=cache) for piece in x.split(chunk, dim=1)]
        torch.testing.assert_close(torch.cat(pieces, dim=1), whole)
        positions.table.zero_()
        assert not torch.allclose(attention(x, causal=True), whole)


def test_every_bucket_learns():
    positions = T5Positions(2, num_buckets=8, max_distance=20)
    ids = torch.arange(40)
    positions.bias(ids, ids).square().sum().backward()
    assert torch.equal(positions.table.grad, torch.zeros(8, 2))  # at 0 a square has none
    generator = torch.Generator().manual_seed(1)
    positions.bias(ids, ids).mul(torch.rand(2, 40, 40, generator=generator)).sum().backward()
    used = torch.tensor([row != 4 for row in range(8)])  # distance 0 is never after the query
    assert torch.equal((positions.table.grad != 0).all(1), used)


@pytest.mark.plain_types
def test_bad_input_is_refused():
    ids = torch.arange(3)
    for options, message in (
        ({"num_buckets": 3}, "num_buckets: expected at least 4, with bidirectional=True, got 3"),
        ({"num_buckets": 1, "bidirectional": False}, "num_buckets: expected at least 2, with bid"),
        ({"max_distance": 8}, "max_distance: expected more than 8, up to which .*, got 8"),
        ({"max_distance": 16, "bidirectional": False}, "max_distance: expected more than 16"),
    ):
        with pytest.raises(ValueError, match=message):
            t5_buckets(ids, ids, **options)
        with pytest.raises(ValueError, match=message):
            T5Positions(2, **options)
    with pytest.raises(TypeError, match="query_ids: expected"):
        t5_buckets(ids.float(), ids)
    with pytest.raises(ValueError, match="num_heads: expected"):
        T5Positions(0)
