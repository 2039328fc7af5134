"""Gated DeltaNet as a layer: equal to Qwen3-Next's with copied weights, cached = uncached, batch = single."""

import pytest
import torch
from torch.nn import functional
from transformers import DynamicCache, Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from same_numbers import assert_float32_same, in_dtype, shake
from tested_transformer.layers.gated_delta_net import (
    GatedDeltaNet,
    l2_normalize,
)
from tested_transformer.layers.recurrent_state import RecurrentState

D, HEADS, KEY_HEADS, D_KEY, D_VALUE = 12, 4, 2, 3, 5
X = torch.randn(2, 7, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def layer(**options):
    torch.manual_seed(0)
    sizes = {"d_key": D_KEY, "d_value": D_VALUE, "num_key_heads": KEY_HEADS, "chunk_size": 3}
    made = shake(GatedDeltaNet(D, HEADS, **sizes | options), 1).double()
    with torch.no_grad():
        made.log_rate.sub_(1.5)  # slower forgetting, so that the state matters
    return made


# --- Qwen3-Next -----------------------------------------------------------------------------------

CONFIG = Qwen3NextConfig(
    hidden_size=D, linear_num_value_heads=HEADS, linear_num_key_heads=KEY_HEADS,
    linear_key_head_dim=D_KEY, linear_value_head_dim=D_VALUE, num_hidden_layers=2,
    layer_types=["linear_attention", "full_attention"],
)  # fmt: skip


def theirs_with_weights_of(ours):
    """Their module; its fused projections hold query, key, value and gate of each key head in turn."""
    theirs = Qwen3NextGatedDeltaNet(CONFIG, 0).double().eval()
    per_head = [
        each.weight.unflatten(0, (KEY_HEADS, -1))
        for each in (ours.query, ours.key, ours.value, ours.gate)
    ]
    gates = [each.weight.unflatten(0, (KEY_HEADS, -1)) for each in (ours.beta, ours.decay)]
    with torch.no_grad():
        theirs.in_proj_qkvz.weight.copy_(torch.cat(per_head, 1).flatten(0, 1))
        theirs.in_proj_ba.weight.copy_(torch.cat(gates, 1).flatten(0, 1))
        theirs.conv1d.weight.copy_(ours.conv[:, None])
        theirs.A_log.copy_(ours.log_rate)
        theirs.dt_bias.copy_(ours.decay_bias)
        theirs.norm.weight.copy_(ours.norm_scale)
        theirs.out_proj.weight.copy_(ours.output.weight)
    return theirs


def runs(module, call=lambda module, x: module(x)):
    """Output and the gradient of the input."""

    def run(dtype):
        x = X.to(dtype).detach().requires_grad_()
        output = call(in_dtype(module, dtype), x)
        output.square().sum().backward()
        return {"output": [output], "gradient": [x.grad]}

    return run


def test_qwen3_next():
    """Theirs computes in float32 whatever it is given."""
    assert_float32_same(runs(layer()), runs(theirs_with_weights_of(layer())))


@torch.no_grad()
@pytest.mark.parametrize("sizes", [[7], [5, 1, 1], [1] * 7, [3, 2, 2], [4, 3]])
def test_qwen3_next_with_a_cache(sizes):
    """Prefill, then one token at a time, or chunks of 2 and 3."""
    ours, states = layer(), RecurrentState()
    theirs, cache = theirs_with_weights_of(ours), DynamicCache(config=CONFIG)
    for part in X.split(sizes, 1):
        expected = theirs(part, cache_params=cache)
        found = ours(part, cache=states)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


@torch.no_grad()
def test_qwen3_next_with_left_padding():
    real = torch.ones(2, 7, dtype=torch.bool)
    real[1, :3] = False
    ours = layer()
    expected = theirs_with_weights_of(ours)(X, attention_mask=real.double())
    found = ours(X, real=real)
    torch.testing.assert_close(found[real], expected[real], rtol=1e-4, atol=2e-5)


# --- By itself ------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("sizes", [[1] * 7, [2, 2, 2, 1], [3, 4], [4, 3], [7], [6, 1]])
def test_cached_is_uncached(sizes):
    made, cache = layer(), RecurrentState()
    parts = [made(part, cache=cache) for part in X.split(sizes, 1)]
    torch.testing.assert_close(torch.cat(parts, 1), made(X))
    assert (cache.length, cache.batch) == (7, 2)
    channels = 2 * KEY_HEADS * D_KEY + HEADS * D_VALUE
    assert cache.nbytes == 2 * 8 * (HEADS * D_KEY * D_VALUE + 3 * channels)


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("padding", [1, 3, 5])
def test_a_padded_sequence_is_the_sequence_alone(side, padding):
    """And so it is after two more tokens, for which the cache must have the last real inputs."""
    made, real = layer(), torch.ones(2, 7, dtype=torch.bool)
    real[1, :padding] = False
    real = real if side == "left" else real.flip(1)
    batched, alone = RecurrentState(), RecurrentState()
    found = made(X, real=real, cache=batched)[1, real[1]]
    torch.testing.assert_close(found, made(X[1:, real[1]], cache=alone)[0])
    more = X.flip(1)[:, :2]
    torch.testing.assert_close(made(more, cache=batched)[1:], made(more[1:], cache=alone))


@torch.no_grad()
def test_padding_may_hold_anything_and_no_token_depends_on_later_ones():
    made, real = layer(), torch.ones(2, 7, dtype=torch.bool)
    real[1, :3] = False
    changed = X.masked_fill(~real[..., None], 9.0)
    torch.testing.assert_close(made(changed, real=real)[real], made(X, real=real)[real])
    later = X.clone()
    later[:, 5:] += 1.0
    torch.testing.assert_close(made(later)[:, :5], made(X)[:, :5])


def test_every_parameter_has_a_gradient():
    made = layer()
    made(X).square().sum().backward()
    for name, weight in made.named_parameters():
        assert bool((weight.grad != 0).any()), name


@torch.no_grad()
def test_a_cache_is_reordered_and_emptied():
    made, cache = layer(), RecurrentState()
    made(X, cache=cache)
    cache.reorder(torch.tensor([1, 1]))
    expected = made(torch.cat((X[[1, 1]], X[:, :1]), 1))[:, 7:]
    torch.testing.assert_close(made(X[:, :1], cache=cache), expected)
    cache.truncate(0)
    torch.testing.assert_close(made(X, cache=cache), made(X))


def test_a_norm():
    torch.testing.assert_close(l2_normalize(X, eps=1e-30), functional.normalize(X, dim=-1))
    assert not bool(l2_normalize(torch.zeros(2, 3)).any())


@torch.no_grad()
def test_low_precision_stays_finite():
    made = layer().bfloat16()
    cache = RecurrentState()
    output = made(X.bfloat16(), cache=cache)
    assert (output.dtype, cache.get("state").dtype) == (torch.bfloat16, torch.float32)
    assert bool(output.isfinite().all())


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="num_key_heads: expected"):
        GatedDeltaNet(12, 4, d_key=3, d_value=5, num_key_heads=3)
    with pytest.raises(ValueError, match="x: expected"):
        layer()(X[..., :5])
    with pytest.raises(ValueError, match="real: expected"):
        layer()(X, real=torch.ones(2, 6, dtype=torch.bool))
    cache = RecurrentState()
    with torch.no_grad():
        layer()(X, cache=cache)
    with pytest.raises(ValueError, match="length: expected 0 or 7"):
        cache.truncate(3)
