"""The layer of gated retention and its cache: chunks, padding, the state's size, and what cannot be taken back."""

import pytest
import torch
from torch.nn import functional

from same_numbers import shake
from tested_transformer.layers.cache import DecoderCache, LayerState
from tested_transformer.layers.gated_retention import GatedRetention, RetentionState
from tested_transformer.positions.rotary import RotaryPositions


def numbers(*shape, seed=1):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


X = numbers(2, 9, 12)


def layer(seed=0, **options):
    options = {"positions": RotaryPositions(4), "temperature": 3.0, "chunk_size": 4} | options
    return shake(GatedRetention(12, 3, d_head=4, **options), seed).double().eval()


def by_hand(ours, x):
    """Token by token with the layer's matrices, and nothing else of the package but the rotation."""
    query, key, value = (
        part(x).unflatten(-1, (3, 4)).transpose(1, 2) for part in (ours.query, ours.key, ours.value)
    )
    query, key = RotaryPositions(4).rotate(query, key, torch.arange(x.shape[1]))
    decay = ours.decay(x).sigmoid() ** (1 / 3)  # B L H
    state, outputs = torch.zeros(len(x), 3, 4, 4, dtype=x.dtype), []
    for t in range(x.shape[1]):
        state = decay[:, t, :, None, None] * state + key[:, :, t, :, None] * value[:, :, t, None]
        found = (query[:, :, t, None] @ state)[:, :, 0] / 2
        found = found / (found.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        outputs.append(found.flatten(1))
    return ours.output(functional.silu(ours.gate(x)) * torch.stack(outputs, 1))


@pytest.mark.parametrize("seed", range(2))
def test_equal_to_the_formula_by_hand(seed):
    ours = layer(seed)
    torch.testing.assert_close(ours(X), by_hand(ours, X))


@torch.no_grad()
@pytest.mark.parametrize("chunk", [1, 2, 4, 5, 9])
def test_in_chunks_with_a_state_that_does_not_grow(chunk):
    ours, cache, sizes = layer(), RetentionState(), set()
    outputs = []
    for piece in X.split(chunk, 1):
        outputs.append(ours(piece, cache=cache))
        sizes.add(cache.nbytes)
    torch.testing.assert_close(torch.cat(outputs, 1), ours(X))
    assert cache.length == 9
    assert sizes == {2 * 3 * 4 * 4 * 8}  # B H d d, float64


def test_every_parameter_counts():
    ours = layer()
    ours(X).square().sum().backward()
    for name, parameter in ours.named_parameters():
        assert bool((parameter.grad != 0).any()), name


@pytest.mark.parametrize("padded", [slice(0, 4), slice(5, None)], ids=["left", "right"])
def test_padding(padded):
    ours, real = layer(), torch.ones(2, 9, dtype=torch.bool)
    real[1, padded] = False
    places = (real.cumsum(1) - 1).clamp(min=0)
    found = ours(X, real=real, position_ids=places)
    torch.testing.assert_close(found[1:, real[1]], ours(X[1:, real[1]]))
    torch.testing.assert_close(found[:1], ours(X[:1]))


@torch.no_grad()
def test_the_state_follows_its_rows_and_is_forgotten_whole():
    ours, cache = layer(), RetentionState()
    assert isinstance(cache, LayerState)
    assert (cache.batch, cache.nbytes) == (None, 0)
    with pytest.raises(RuntimeError, match="the cache is empty"):
        cache.reorder(torch.tensor([0]))
    ours(X[:, :5], cache=cache)
    rows = torch.tensor([1, 0, 1])
    cache.reorder(rows)
    assert cache.batch == 3
    torch.testing.assert_close(ours(X[rows][:, 5:], cache=cache), ours(X[rows])[:, 5:])
    cache.truncate(9)
    with pytest.raises(ValueError, match="length: expected 0 or 9: one state stands for all"):
        cache.truncate(8)
    cache.truncate(0)
    torch.testing.assert_close(ours(X, cache=cache), ours(X))


@torch.no_grad()
def test_a_decoder_cache_holds_states():
    cache = DecoderCache(2, own=RetentionState)
    ours = layer()
    cache.extend(torch.ones(2, 9, dtype=torch.bool))
    for each in cache.layers:
        ours(X, cache=each.own)
    assert cache.nbytes == 2 * 2 * 3 * 4 * 4 * 8
    cache.reorder(torch.tensor([1]))
    torch.testing.assert_close(cache.layers[1].own.state, cache.layers[0].own.state)
    assert cache.batch == 1


@torch.no_grad()
def test_half_precision_keeps_its_state_in_float32():
    ours, cache = layer().bfloat16(), RetentionState()
    assert ours(X.bfloat16(), cache=cache).dtype == torch.bfloat16
    assert cache.state.dtype == torch.float32


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="state: expected no gradient"):
        layer()(X, cache=RetentionState())
    with pytest.raises(ValueError, match="x: expected"):
        layer()(X[..., :7])
    with pytest.raises(ValueError, match="real: expected"):
        layer()(X, real=torch.ones(2, 8, dtype=torch.bool))
    with pytest.raises(ValueError, match="num_heads: expected"):
        GatedRetention(12, 5)
    with pytest.raises(TypeError, match="cache: expected a RetentionState or None, got"):
        layer()(X, cache=DecoderCache(1))
