"""The delta rule: equal forms, equal to the loops of transformers, stable under strong decay."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.olmo_hybrid import modeling_olmo_hybrid as olmo
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

from same_numbers import assert_float32_same, assert_same_numbers
from tested_transformer import reference
from tested_transformer.mixers.delta_rule import (
    chunked_delta_rule,
    parallel_delta_rule,
    recurrent_delta_rule,
)
from tested_transformer.mixers.retention import recurrent_retention
from tested_transformer.specs.delta_rule.spec import DELTA_RULE
from tested_transformer.specs.judge import judge

FORMS = {
    "parallel": parallel_delta_rule,
    "recurrent": recurrent_delta_rule,
    "chunked": chunked_delta_rule,
}
EACH = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
EPS = torch.finfo(torch.float64).eps


def numbers(*shape, seed=1):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


QUERY, KEY, VALUE = numbers(2, 3, 7, 4), numbers(2, 3, 7, 4, seed=2), numbers(2, 3, 7, 5, seed=3)
KEY = functional.normalize(KEY, dim=-1)
BETA, STATE = numbers(2, 3, 7, seed=4).sigmoid(), numbers(2, 3, 4, 5, seed=5)
PER_HEAD = -functional.softplus(2 * numbers(2, 3, 7, seed=6))
PER_CHANNEL = -functional.softplus(2 * numbers(2, 3, 7, 4, seed=7))
KINDS = {"DeltaNet": None, "gated": PER_HEAD, "per channel": PER_CHANNEL, "strong": 40 * PER_HEAD}
KIND = pytest.mark.parametrize("log_decay", KINDS.values(), ids=KINDS)


@EACH
def test_the_spec(form):
    verdict = judge(DELTA_RULE, form)
    assert verdict.passed, verdict


# --- Equal forms ----------------------------------------------------------------------------------


def runs(form, log_decay, **options):
    """Output, state and every gradient, as a function of a dtype."""

    def run(dtype):
        inputs = (QUERY, KEY, VALUE, BETA, STATE, *([] if log_decay is None else [log_decay]))
        given = [each.clone().to(dtype).detach().requires_grad_() for each in inputs]
        output, state = form(*given[:4], *given[5:], state=given[4], **options)
        total = (output * numbers(*output.shape, seed=8).to(dtype)).sum()
        total = total + (state * numbers(*state.shape, seed=9).to(dtype)).sum()
        total.backward()
        return {"output": [output], "state": [state], "gradients": [each.grad for each in given]}

    return run


@KIND
@pytest.mark.parametrize("chunk_size", [1, 2, 3, 6, 7, 100])
def test_chunks_of_any_size_and_their_gradients(chunk_size, log_decay):
    chunked = runs(chunked_delta_rule, log_decay, chunk_size=chunk_size)
    for other in (recurrent_delta_rule, parallel_delta_rule):
        assert_same_numbers(chunked, runs(other, log_decay))
        assert_float32_same(chunked, runs(other, log_decay))


@EACH
@KIND
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_state_is_handed_on(form, log_decay, size):
    whole, last = form(QUERY, KEY, VALUE, BETA, log_decay, state=STATE)
    log_decay = torch.zeros_like(BETA) if log_decay is None else log_decay
    state, outputs = STATE, []
    inputs = (QUERY, KEY, VALUE, BETA, log_decay)
    for parts in zip(*(x.split(size, 2) for x in inputs), strict=True):
        output, state = form(*parts, state=state)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, 2), whole)
    torch.testing.assert_close(state, last)


@EACH
@KIND
@pytest.mark.parametrize("length", [0, 1])
def test_short_texts(form, log_decay, length):
    inputs = (QUERY, KEY, VALUE, BETA, torch.zeros_like(BETA) if log_decay is None else log_decay)
    parts = [each[:, :, :length] for each in inputs]
    output, state = form(*parts, state=STATE)
    expected = reference.delta_rule(*(each.numpy() for each in parts), state=STATE.numpy())
    for found, wanted in zip((output, state), expected, strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found.numpy(), wanted, rtol=0, atol=64 * EPS)


@EACH
@KIND
@pytest.mark.parametrize("side", ["left", "right", "inside"])
def test_padding_with_a_beta_of_0_and_a_decay_of_1_does_nothing(form, log_decay, side):
    real = torch.ones(2, 7, dtype=torch.bool)
    real[1, {"left": slice(0, 3), "right": slice(4, None), "inside": slice(2, 5)}[side]] = False
    log_decay = torch.zeros_like(BETA) if log_decay is None else log_decay
    padded = log_decay.masked_fill(~real.view(2, 1, 7, *[1] * (log_decay.ndim - 3)), 0.0)
    output, state = form(QUERY, KEY, VALUE, BETA * real[:, None], padded)
    alone, last = form(*(x[1:, :, real[1]] for x in (QUERY, KEY, VALUE, BETA, log_decay)))
    torch.testing.assert_close(output[1:, :, real[1]], alone)
    torch.testing.assert_close(state[1:], last)


# --- Equal to others ------------------------------------------------------------------------------

THEIRS = {
    "Qwen3-Next, token by token": (qwen.torch_recurrent_gated_delta_rule, PER_HEAD),
    "Qwen3-Next, in chunks": (qwen.torch_chunk_gated_delta_rule, PER_HEAD),
    "OLMo-Hybrid, token by token": (olmo.torch_recurrent_gated_delta_rule, PER_HEAD),
    "OLMo-Hybrid, in chunks": (olmo.torch_chunk_gated_delta_rule, PER_HEAD),
    "Kimi Linear, token by token": (kimi.recurrent_kimi_delta_attention, PER_CHANNEL),
    "Kimi Linear, in chunks": (kimi.chunk_kimi_delta_attention, PER_CHANNEL),
}


def transposed(rule):
    """Their function, which wants (B, L, H, d), called as ours."""

    def called(query, key, value, beta, log_decay, *, state, **options):
        q, k, v, beta, g = (x.transpose(1, 2) for x in (query, key, value, beta, log_decay))
        output, state = rule(
            q, k, v, g=g, beta=beta, initial_state=state, output_final_state=True, **options
        )
        return output.transpose(1, 2), state

    return called


@pytest.mark.parametrize("name", THEIRS)
@pytest.mark.parametrize("form", [recurrent_delta_rule, chunked_delta_rule])
def test_transformers(name, form):
    """Values, the last state and every gradient; theirs go through float32 whatever they are given."""
    rule, log_decay = THEIRS[name]
    options = {"chunk_size": 3} if "chunks" in name else {}
    assert_float32_same(runs(form, log_decay), runs(transposed(rule), log_decay, **options))


@EACH
def test_a_beta_of_0_only_forgets(form):
    output, state = form(QUERY, KEY, VALUE, 0 * BETA, PER_HEAD, state=STATE)
    expected = recurrent_retention(QUERY, 0 * KEY, VALUE, PER_HEAD, state=STATE)
    torch.testing.assert_close(output, expected[0])
    torch.testing.assert_close(state, expected[1])


@EACH
def test_it_is_linear_attention_while_the_keys_are_orthogonal(form):
    """Nothing is stored under a key that is orthogonal to all before it: the difference is the value."""
    keys = torch.eye(7, dtype=torch.float64).expand(2, 3, 7, 7)
    query, ones = numbers(2, 3, 7, 7, seed=11), torch.ones_like(BETA)
    output, state = form(query, keys, VALUE, ones, scale=1.0)
    sums = (keys[..., None] * VALUE[..., None, :]).cumsum(2)  # B H L d dv
    torch.testing.assert_close(output, (query[..., None, :] @ sums)[..., 0, :])
    torch.testing.assert_close(state, sums[:, :, -1])


@EACH
def test_a_step_is_one_of_gradient_descent(form):
    """S - beta x the gradient of |v - S^T k|^2 / 2: what the delta rule is named after."""
    state = STATE.clone().requires_grad_()
    loss = (VALUE[:, :, 0] - (KEY[:, :, 0, None] @ state)[:, :, 0]).square().sum() / 2
    loss.backward()
    _, after = form(*(x[:, :, :1] for x in (QUERY, KEY, VALUE, BETA)), state=STATE)
    torch.testing.assert_close(after, STATE - BETA[:, :, 0, None, None] * state.grad)


@EACH
def test_a_key_written_again_has_its_new_value(form):
    """And the pair under an orthogonal key keeps its value."""
    one, other = torch.eye(4, dtype=torch.float64)[:2]
    keys = torch.stack((one, other, one)).expand(1, 1, 3, 4)
    values, read = numbers(1, 1, 3, 5, seed=12), torch.stack((one, other)).expand(1, 1, 2, 4)
    _, state = form(keys, keys, values, torch.ones(1, 1, 3, dtype=torch.float64))
    torch.testing.assert_close(read @ state, values[:, :, [2, 1]])


# --- Stable ---------------------------------------------------------------------------------------


@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("logarithm", [-1e-30, -100.0, -1e4, -1e30, -torch.inf])
@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 7, 4)])
def test_decays_of_any_size_stay_finite(form, dtype, logarithm, shape):
    """A decay may be 0, whose logarithm is minus infinity: no NaN, in no gradient either."""
    decays = torch.full(shape, logarithm, dtype=dtype)
    decays[:, :, ::3] = -0.1
    inputs = (QUERY, KEY, VALUE, BETA)
    given = [each.clone().to(dtype).detach().requires_grad_() for each in inputs]
    output, state = form(*given, decays.requires_grad_(), state=STATE.to(dtype))
    (output.sum() + state.sum()).backward()
    for each in (output, state, decays.grad, *(one.grad for one in given)):
        assert bool(torch.isfinite(each).all())


@EACH
def test_a_strong_decay_does_not_blur_the_weak_ones_after_it(form):
    """Orthogonal keys, read by the sum of them: 1 + exp(-0.1) + ... of the tokens after the strong decay."""
    decays, keys = torch.full((1, 1, 7), -0.1), torch.eye(7)[None, None]
    decays[..., 2] = -1e8
    one = torch.ones(1, 1, 7)
    output, _ = form(torch.ones(1, 1, 7, 7), keys, one[..., None], one, decays, scale=1.0)
    expected = sum(math.exp(-0.1 * back) for back in range(5))  # tokens 2 to 6
    assert float(output[0, 0, -1, 0]) == pytest.approx(expected, rel=1e-6)


@EACH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_keeps_its_dtype_and_a_wide_state(form, dtype):
    given = [each.to(dtype) for each in (QUERY, KEY, VALUE, BETA)]
    output, state = form(*given, PER_HEAD.float())
    wide, _ = form(*(each.float() for each in given), PER_HEAD.float())
    assert (output.dtype, state.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(output, wide.to(dtype))


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="key: expected .*4"):
        parallel_delta_rule(QUERY, KEY[..., :3], VALUE, BETA)
    with pytest.raises(ValueError, match="beta: expected"):
        recurrent_delta_rule(QUERY, KEY, VALUE, BETA[..., :3])
    with pytest.raises(ValueError, match="log_decay: expected"):
        recurrent_delta_rule(QUERY, KEY, VALUE, BETA, PER_CHANNEL[..., :3])
    with pytest.raises(ValueError, match="state: expected"):
        chunked_delta_rule(QUERY, KEY, VALUE, BETA, state=STATE[..., :2])
    with pytest.raises(ValueError, match="chunk_size: expected at least 1"):
        chunked_delta_rule(QUERY, KEY, VALUE, BETA, chunk_size=0)
    with pytest.raises(TypeError, match="value: expected"):
        parallel_delta_rule(QUERY, KEY, VALUE.float(), BETA)
