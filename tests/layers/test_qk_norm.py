"""QK-norm: what it holds fixed, step by step by hand, and with a cache."""

import pytest
import torch

from tested_transformer.functional.attention import attention
from tested_transformer.layers.cache import KeyValueCache
from tested_transformer.layers.multi_head import MultiHeadAttention, concat_heads, split_heads
from tested_transformer.layers.norms import rms_norm
from tested_transformer.layers.qk_norm import QKNormAttention
from tested_transformer.positions.rotary import RotaryPositions, apply_rotary


def layer(**options):
    torch.manual_seed(0)
    found = QKNormAttention(12, 6, num_kv_heads=3, d_head=4, norm_eps=1e-3, **options).double()
    with torch.no_grad():
        found.query_norm.weight.normal_(1, 0.3)
        found.key_norm.weight.normal_(1, 0.3)
    return found


X = torch.randn(2, 5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_step_by_step():
    """Project, split, normalize each head with one scale for all, rotate, attend."""
    ours = layer(positions=RotaryPositions(4))
    query, key, value = (
        split_heads(part(X), heads)
        for part, heads in ((ours.query, 6), (ours.key, 3), (ours.value, 3))
    )
    query = rms_norm(query, ours.query_norm.weight, eps=1e-3)
    key = rms_norm(key, ours.key_norm.weight, eps=1e-3)
    query, key = (apply_rotary(each, torch.arange(5)) for each in (query, key))
    wanted = ours.output(concat_heads(attention(query, key, value, causal=True)))
    torch.testing.assert_close(ours(X, causal=True), wanted)
    plain = MultiHeadAttention(
        12, 6, num_kv_heads=3, d_head=4, positions=RotaryPositions(4)
    ).double()
    plain.load_state_dict(ours.state_dict(), strict=False)
    assert not torch.allclose(plain(X, causal=True), wanted)


def test_scores_do_not_grow_with_the_weights():
    """Queries and keys ten thousand times as large: the same attention weights, up to eps."""
    ours = layer()
    ours.query_norm.eps = ours.key_norm.eps = 1e-30
    before = ours(X, return_weights=True)[1]
    with torch.no_grad():
        ours.query.weight.mul_(1e4)
        ours.query.bias.mul_(1e4)
        ours.key.weight.mul_(1e4)
        ours.key.bias.mul_(1e4)
    torch.testing.assert_close(ours(X, return_weights=True)[1], before)


def test_only_the_distance_counts():
    """The norm comes before the rotation: all positions moved by 7 change nothing."""
    ours = layer(positions=RotaryPositions(4))
    places = torch.arange(5)
    torch.testing.assert_close(ours(X, position_ids=places + 7), ours(X, position_ids=places))


@torch.no_grad()
@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_in_chunks(chunk):
    ours, cache = layer(positions=RotaryPositions(4)), KeyValueCache()
    pieces = [ours(piece, causal=True, cache=cache) for piece in X.split(chunk, dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), ours(X, causal=True))


@pytest.mark.plain_types
def test_a_fixed_cache_is_refused():
    with pytest.raises(
        ValueError, match="cache: expected one that grows: this layer is for self-att"
    ):
        layer()(X, X, cache=KeyValueCache(fixed=True))
    with pytest.raises(ValueError, match="norm_eps: expected a number above 0, got 0"):
        QKNormAttention(12, 6, norm_eps=0)
