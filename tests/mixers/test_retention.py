"""Retention: three forms of one function, equal to loops of the papers' equations, stable in both directions."""

import math

import numpy as np
import pytest
import torch

from same_numbers import assert_float32_same, assert_same_numbers
from tested_transformer import reference
from tested_transformer.mixers.retention import (
    chunked_retention,
    gated_log_decay,
    gated_retention,
    parallel_retention,
    recurrent_retention,
    retnet_log_decay,
)
from tested_transformer.specs.judge import judge
from tested_transformer.specs.retention.spec import GATED_RETENTION, RETENTION

FORMS = {
    "parallel": parallel_retention,
    "recurrent": recurrent_retention,
    "chunked": chunked_retention,
}
EACH = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
EPS = torch.finfo(torch.float64).eps


def numbers(*shape, seed=1):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


QUERY, KEY, VALUE = numbers(2, 3, 7, 4), numbers(2, 3, 7, 4, seed=2), numbers(2, 3, 7, 5, seed=3)
LOGITS, STATE = 2 * numbers(2, 3, 7, seed=4), numbers(2, 3, 4, 5, seed=5)
DECAY = gated_log_decay(LOGITS, temperature=2.0)


@EACH
def test_the_spec(form):
    verdict = judge(RETENTION, form)
    assert verdict.passed, verdict


def test_the_spec_with_gates():
    verdict = judge(GATED_RETENTION, gated_retention)
    assert verdict.passed, verdict


# --- Equal forms ----------------------------------------------------------------------------------


def runs(form, **options):
    """Output, state and every gradient, as a function of a dtype."""

    def run(dtype):
        inputs = (QUERY, KEY, VALUE, DECAY, STATE)
        given = [each.clone().to(dtype).detach().requires_grad_() for each in inputs]
        output, state = form(*given[:4], state=given[4], **options)
        total = (output * numbers(*output.shape, seed=7).to(dtype)).sum()
        total = total + (state * numbers(*state.shape, seed=8).to(dtype)).sum()
        total.backward()
        return {"output": [output], "state": [state], "gradients": [each.grad for each in given]}

    return run


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 6, 7, 8, 100])
def test_chunks_of_any_size_and_their_gradients(chunk_size):
    chunked = runs(chunked_retention, chunk_size=chunk_size)
    for other in (recurrent_retention, parallel_retention):
        assert_same_numbers(chunked, runs(other))
        assert_float32_same(chunked, runs(other))


@EACH
def test_a_state_is_handed_on(form):
    whole, last = form(QUERY, KEY, VALUE, DECAY, state=STATE)
    state, outputs = STATE, []
    for q, k, v, g in zip(*(x.split(3, 2) for x in (QUERY, KEY, VALUE, DECAY)), strict=True):
        output, state = form(q, k, v, g, state=state)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, 2), whole)
    torch.testing.assert_close(state, last)


@EACH
@pytest.mark.parametrize("length", [0, 1])
def test_short_texts(form, length):
    parts = [each[:, :, :length] for each in (QUERY, KEY, VALUE, DECAY)]
    output, state = form(*parts, state=STATE)
    expected = reference.retention(*(each.numpy() for each in parts), state=STATE.numpy())
    for found, wanted in zip((output, state), expected, strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found.numpy(), wanted, rtol=0, atol=64 * EPS)


# --- Equal to others ------------------------------------------------------------------------------


def retnet_by_powers(query, key, value):
    """Equation 5 of RetNet with its decays, as powers: nothing of the package.

    What flash-linear-attention has as naive_retention, in other words: powers of 2 there, of gamma here.
    """
    batch, heads, length, width = query.shape
    output = torch.zeros(batch, heads, length, value.shape[-1], dtype=query.dtype)
    for h in range(heads):
        gamma = 1 - 2.0 ** (-5 - h)
        for i in range(length):
            for j in range(i + 1):
                score = (query[:, h, i] * key[:, h, j]).sum(-1, keepdim=True) / math.sqrt(width)
                output[:, h, i] += gamma ** (i - j) * score * value[:, h, j]
    return output


@EACH
def test_retnet(form):
    decays = retnet_log_decay(3).double()[None, :, None]
    torch.testing.assert_close(decays[0, :, 0].exp().tolist(), [31 / 32, 63 / 64, 127 / 128],
                               rtol=1e-6, atol=0)  # fmt: skip
    exact = torch.log1p(-(2.0 ** (-5 - torch.arange(3).double())))[None, :, None]
    output, _ = form(QUERY, KEY, VALUE, exact)
    torch.testing.assert_close(output, retnet_by_powers(QUERY, KEY, VALUE))


def gated_by_products(query, key, value, logits, temperature):
    """D[n, m] is the product of gamma_(m+1) to gamma_n, each a root of a sigmoid: nothing of the package."""
    gamma = logits.sigmoid() ** (1 / temperature)
    output = torch.zeros(*query.shape[:3], value.shape[-1], dtype=query.dtype)
    for n in range(query.shape[2]):
        for m in range(n + 1):
            decay = gamma[:, :, m + 1 : n + 1].prod(-1, keepdim=True)
            score = (query[:, :, n] * key[:, :, m]).sum(-1, keepdim=True) * query.shape[-1] ** -0.5
            output[:, :, n] += decay * score * value[:, :, m]
    return output / (output.square().mean(-1, keepdim=True) + 1e-5).sqrt()


@pytest.mark.parametrize("temperature", [1.0, 2.0, 16.0])
@pytest.mark.parametrize("chunk_size", [1, 3, 64])
def test_gated_retention(temperature, chunk_size):
    found, _ = gated_retention(
        QUERY, KEY, VALUE, LOGITS, temperature=temperature, chunk_size=chunk_size
    )
    torch.testing.assert_close(found, gated_by_products(QUERY, KEY, VALUE, LOGITS, temperature))


@EACH
def test_without_decay_it_is_causal_linear_attention(form):
    output, state = form(QUERY, KEY, VALUE, torch.zeros(1, 1, 1, dtype=torch.float64), scale=1.0)
    sums = (KEY[..., None] * VALUE[..., None, :]).cumsum(2)  # B H L d dv
    torch.testing.assert_close(output, (QUERY[..., None, :] @ sums)[..., 0, :])
    torch.testing.assert_close(state, sums[:, :, -1])


# --- Stable ---------------------------------------------------------------------------------------


@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("logarithm", [-1e-30, -100.0, -1e4, -1e30, -torch.inf])
def test_decays_of_any_size_stay_finite(form, dtype, logarithm):
    """A decay may be 0, whose logarithm is minus infinity: no NaN, in no gradient either."""
    decays = torch.full((2, 3, 7), logarithm, dtype=dtype)
    decays[:, :, ::3] = -0.1
    given = [each.clone().to(dtype).detach().requires_grad_() for each in (QUERY, KEY, VALUE)]
    output, state = form(*given, decays.requires_grad_(), state=STATE.to(dtype))
    (output.sum() + state.sum()).backward()
    for each in (output, state, decays.grad, *(one.grad for one in given)):
        assert bool(torch.isfinite(each).all())


@EACH
def test_a_strong_decay_does_not_blur_the_weak_ones_after_it(form):
    """Sums from the beginning would be 1e8 and lose what 0.1 adds: in float32 their steps are 8."""
    decays = torch.full((1, 1, 7), -0.1)
    decays[..., 2] = -1e8
    one = torch.ones(1, 1, 7, 1)
    output, _ = form(one, one, one, decays)
    expected = sum(math.exp(-0.1 * back) for back in range(5))  # tokens 2 to 6
    assert float(output[0, 0, -1, 0]) == pytest.approx(expected, rel=1e-6)


@EACH
def test_a_long_text_in_float32(form):
    """4,096 tokens whose decays are close to 1: the geometric sum of the weights."""
    length, decay = 4096, 1 - 2.0**-9
    one = torch.ones(1, 1, length, 1)
    output, state = form(one, one, one, torch.full((1, 1, 1), math.log(decay)))
    expected = (1 - decay**length) / (1 - decay)
    for found in (output[0, 0, -1, 0], state[0, 0, 0, 0]):
        assert float(found) == pytest.approx(expected, rel=length * torch.finfo().eps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_keeps_its_dtype_and_a_wide_state(dtype):
    given = [each.to(dtype) for each in (QUERY, KEY, VALUE)]
    for form in FORMS.values():
        output, state = form(*given, DECAY.float())
        wide, _ = form(*(each.float() for each in given), DECAY.float())
        assert (output.dtype, state.dtype) == (dtype, torch.float32)
        torch.testing.assert_close(output, wide.to(dtype))
    output, state = gated_retention(*given, LOGITS.to(dtype), state=state)
    assert (output.dtype, state.dtype) == (dtype, torch.float32)


def test_logits_of_any_size():
    logits = torch.tensor([-1e4, -100.0, 0.0, 100.0, 1e4])
    found = gated_log_decay(logits)
    assert bool((found <= 0).all())
    assert bool(torch.isfinite(found).all())
    torch.testing.assert_close(found[:3], torch.tensor([-625.0, -6.25, -math.log(2) / 16]))
    assert gated_log_decay(logits.bfloat16()).dtype == torch.float32


# --- Gates and padding ----------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["left", "right", "inside"])
def test_padding_does_nothing(side):
    real = torch.ones(2, 7, dtype=torch.bool)
    real[1, {"left": slice(0, 3), "right": slice(4, None), "inside": slice(2, 5)}[side]] = False
    output, state = gated_retention(QUERY, KEY, VALUE, LOGITS, real=real, chunk_size=2)
    kept = [each[1:, :, real[1]] for each in (QUERY, KEY, VALUE, LOGITS)]
    alone, last = gated_retention(*kept)
    torch.testing.assert_close(output[1:, :, real[1]], alone)
    torch.testing.assert_close(state[1:], last)


def test_each_head_is_normalized_by_itself():
    output, _ = gated_retention(QUERY, KEY, 10 * VALUE, LOGITS, norm_eps=1e-12)
    torch.testing.assert_close(output.square().mean(-1), torch.ones_like(output[..., 0]))
    changed = VALUE.clone()
    changed[:, 0] *= 100
    other, _ = gated_retention(QUERY, KEY, changed, LOGITS)
    first, _ = gated_retention(QUERY, KEY, VALUE, LOGITS)
    torch.testing.assert_close(other[:, 1:], first[:, 1:])


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="key: expected .*4"):
        parallel_retention(QUERY, KEY[..., :3], VALUE, DECAY)
    with pytest.raises(ValueError, match="log_decay: expected"):
        recurrent_retention(QUERY, KEY, VALUE, DECAY[..., :3])
    with pytest.raises(ValueError, match="state: expected"):
        chunked_retention(QUERY, KEY, VALUE, DECAY, state=STATE[..., :2])
    with pytest.raises(ValueError, match="chunk_size: expected at least 1"):
        chunked_retention(QUERY, KEY, VALUE, DECAY, chunk_size=0)
    with pytest.raises(ValueError, match="temperature: expected a number above 0"):
        gated_log_decay(LOGITS, temperature=0.0)
    with pytest.raises(ValueError, match="real: expected"):
        gated_retention(QUERY, KEY, VALUE, LOGITS, real=torch.ones(2, 6, dtype=torch.bool))
    with pytest.raises(TypeError, match="value: expected"):
        parallel_retention(QUERY, KEY, VALUE.float(), DECAY)
    with pytest.raises(ValueError, match="num_heads: expected at least 1"):
        retnet_log_decay(0)
