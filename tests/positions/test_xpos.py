"""xPos: the Spec, scores that know the distance alone, a cache, half precision, and what is refused."""

import pytest
import torch

from tested_transformer import MultiHeadAttention, XPos, apply_rotary, apply_xpos, judge
from tested_transformer.layers.cache import KeyValueCache
from tested_transformer.specs.xpos.spec import XPOS


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("right", [apply_xpos, XPOS.baseline], ids=["library", "formula"])
def test_right_implementations_pass(right):
    verdict = judge(XPOS, right)
    assert verdict.passed, verdict
    assert not verdict.skipped


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_a_score_is_the_rotary_score_pair_by_pair_times_the_decay(layout):
    """With the query's pair i alone, the score at distance n is rotary's times z_i^(n / scale_base)."""
    query, key, ids = normal(1, 1, 9, 6), normal(1, 1, 9, 6, seed=1), torch.arange(20, 29)
    scheme = XPos(6, scale_base=4.0, center=3, layout=layout)
    distance = (ids[:, None] - ids[None, :]).double()
    for pair in range(3):
        features = [2 * pair, 2 * pair + 1] if layout == "interleaved" else [pair, pair + 3]
        alone = torch.zeros_like(query)
        alone[..., features] = query[..., features]
        turned = [apply_rotary(each, ids, layout=layout) for each in (alone, key)]
        decay = ((2 * pair / 6 + 0.4) / 1.4) ** (distance / 4.0)
        query_at, key_at = scheme.rotate(alone, key, ids)
        torch.testing.assert_close(query_at @ key_at.mT, turned[0] @ turned[1].mT * decay)


def test_the_center_cancels_and_a_cache_changes_nothing():
    """The center is fixed: one in the middle of what came would differ for keys in the cache."""
    x = normal(2, 11, 12)
    layers = []
    for center in (0, 40):
        layer = MultiHeadAttention(12, 3, positions=XPos(4, scale_base=8.0, center=center)).double()
        layer.load_state_dict((layers or [layer])[0].state_dict())
        layers.append(layer)
    with torch.no_grad():
        whole = layers[0](x, causal=True)
        torch.testing.assert_close(layers[1](x, causal=True), whole)
        for chunk in (1, 4):
            cache = KeyValueCache()
            pieces = [layers[0](piece, causal=True, cache=cache) for piece in x.split(chunk, dim=1)]
            torch.testing.assert_close(torch.cat(pieces, dim=1), whole)


def test_the_center_keeps_half_precision_finite():
    """At position 12,000 a key of the first pair is 0.4 / 1.4 to the power of -23: too large for float16."""
    x, ids = torch.ones(1, 1, 1, 8, dtype=torch.float16), torch.tensor([12_000])
    assert apply_xpos(x, ids, of_keys=True).isinf().any()
    assert apply_xpos(x, ids, of_keys=True, center=9_000).isfinite().all()
    assert apply_xpos(x, ids, of_keys=True).dtype == torch.float16


@pytest.mark.plain_types
def test_bad_input_is_refused():
    x, ids = torch.ones(1, 1, 3, 4), torch.arange(3)
    for options, message in (
        ({"scale_base": 0.0}, "scale_base: expected"),
        ({"center": -1}, "center: expected"),
        ({"layout": "pairs"}, "layout: expected"),
    ):
        with pytest.raises(ValueError, match=message):
            apply_xpos(x, ids, **options)
        with pytest.raises(ValueError, match=message):
            XPos(4, **options)
    with pytest.raises(ValueError, match="rotary_dim: expected an even number"):
        XPos(5)
    with pytest.raises(TypeError, match="position_ids: expected"):
        apply_xpos(x, ids.float())
