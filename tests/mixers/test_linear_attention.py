"""Linear attention: three forms of one function, equal to loops, to retention without decay, and to torch's formulas."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from same_numbers import assert_float32_same, assert_same_numbers
from tested_transformer import reference
from tested_transformer.mixers.linear_attention import (
    chunked_linear_attention,
    elu_plus_one,
    parallel_linear_attention,
    recurrent_linear_attention,
)
from tested_transformer.mixers.retention import recurrent_retention
from tested_transformer.specs.judge import judge
from tested_transformer.specs.linear_attention.spec import LINEAR_ATTENTION

FORMS = {
    "parallel": parallel_linear_attention,
    "recurrent": recurrent_linear_attention,
    "chunked": chunked_linear_attention,
}
EACH = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
NORMALIZE = pytest.mark.parametrize("normalize", [True, False])
EPS = torch.finfo(torch.float64).eps


def numbers(*shape, seed=1):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


QUERY, KEY, VALUE = numbers(2, 3, 7, 4), numbers(2, 3, 7, 4, seed=2), numbers(2, 3, 7, 5, seed=3)
STATE = numbers(2, 3, 4, 6, seed=5).abs()


@EACH
def test_the_spec(form):
    verdict = judge(LINEAR_ATTENTION, form)
    assert verdict.passed, verdict


# --- Equal forms ----------------------------------------------------------------------------------


def runs(form, **options):
    """Output, state and every gradient, as a function of a dtype."""

    def run(dtype):
        inputs = (QUERY, KEY, VALUE, STATE if options["normalize"] else STATE[..., 1:])
        given = [each.clone().to(dtype).detach().requires_grad_() for each in inputs]
        output, state = form(*given[:3], state=given[3], **options)
        total = (output * numbers(*output.shape, seed=7).to(dtype)).sum()
        total = total + (state * numbers(*state.shape, seed=8).to(dtype)).sum()
        total.backward()
        return {"output": [output], "state": [state], "gradients": [each.grad for each in given]}

    return run


@NORMALIZE
@pytest.mark.parametrize("chunk_size", [1, 2, 3, 6, 7, 8, 100])
def test_chunks_of_any_size_and_their_gradients(chunk_size, normalize):
    chunked = runs(chunked_linear_attention, chunk_size=chunk_size, normalize=normalize)
    for other in (recurrent_linear_attention, parallel_linear_attention):
        assert_same_numbers(chunked, runs(other, normalize=normalize))
        assert_float32_same(chunked, runs(other, normalize=normalize))


@EACH
@NORMALIZE
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_state_is_handed_on(form, normalize, size):
    start = STATE if normalize else STATE[..., 1:]
    whole, last = form(QUERY, KEY, VALUE, state=start, normalize=normalize)
    state, outputs = start, []
    for parts in zip(*(x.split(size, 2) for x in (QUERY, KEY, VALUE)), strict=True):
        output, state = form(*parts, state=state, normalize=normalize)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, 2), whole)
    torch.testing.assert_close(state, last)


@EACH
@pytest.mark.parametrize("length", [0, 1])
def test_short_texts(form, length):
    parts = [each[:, :, :length] for each in (QUERY, KEY, VALUE)]
    output, state = form(*parts, state=STATE)
    expected = reference.linear_attention(*(each.numpy() for each in parts), state=STATE.numpy())
    for found, wanted in zip((output, state), expected, strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found.numpy(), wanted, rtol=0, atol=64 * EPS)


# --- Equal to others ------------------------------------------------------------------------------


@EACH
def test_it_is_attention_with_other_weights(form):
    """Scores of torch's elu, masked, divided by their sum: softmax attention without the exponential."""
    scores = (functional.elu(QUERY) + 1) @ (functional.elu(KEY) + 1).mT
    weights = functional.normalize(scores.tril(), p=1, dim=-1)
    output, _ = form(QUERY, KEY, VALUE)
    torch.testing.assert_close(output, weights @ VALUE)


@EACH
def test_without_features_and_normalizer_it_is_retention_without_decay(form):
    nothing = torch.zeros(1, 1, 1, dtype=torch.float64)
    found = form(QUERY, KEY, VALUE, feature_map="identity", normalize=False)
    expected = recurrent_retention(QUERY, KEY, VALUE, nothing, scale=1.0)
    for each, other in zip(found, expected, strict=True):
        torch.testing.assert_close(each, other)


# --- Features, padding, bad input -----------------------------------------------------------------


def test_the_feature_map():
    x = torch.linspace(-3, 3, 13, dtype=torch.float64)
    torch.testing.assert_close(elu_plus_one(x), functional.elu(x) + 1)
    small = torch.tensor([-20.0, -80.0])
    assert bool((functional.elu(small) + 1 == 0).all())
    torch.testing.assert_close(elu_plus_one(small), small.exp())
    assert torch.autograd.gradcheck(elu_plus_one, x[x != 0].requires_grad_())


@EACH
@pytest.mark.parametrize("side", ["left", "right", "inside"])
def test_padding_does_nothing(form, side):
    real = torch.ones(2, 7, dtype=torch.bool)
    real[1, {"left": slice(0, 3), "right": slice(4, None), "inside": slice(2, 5)}[side]] = False
    output, state = form(QUERY, KEY, VALUE, real=real)
    alone, last = form(*(each[1:, :, real[1]] for each in (QUERY, KEY, VALUE)))
    torch.testing.assert_close(output[1:, :, real[1]], alone)
    torch.testing.assert_close(state[1:], last)


@EACH
def test_without_any_key_output_and_gradients_are_zero(form):
    given = [each.clone().requires_grad_() for each in (QUERY, KEY, VALUE)]
    output, _ = form(*given, real=torch.zeros(2, 7, dtype=torch.bool))
    output.sum().backward()
    for each in (output, *(one.grad for one in given)):
        assert not bool(each.any())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_keeps_its_dtype_and_a_wide_state(dtype):
    given = [each.to(dtype) for each in (QUERY, KEY, VALUE)]
    for form in FORMS.values():
        output, state = form(*given)
        wide, _ = form(*(each.float() for each in given))
        assert (output.dtype, state.dtype) == (dtype, torch.float32)
        torch.testing.assert_close(output, wide.to(dtype))


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="key: expected .*4"):
        parallel_linear_attention(QUERY, KEY[..., :3], VALUE)
    with pytest.raises(ValueError, match=r"state: expected a last axis of 6, dv \+ 1"):
        recurrent_linear_attention(QUERY, KEY, VALUE, state=STATE[..., 1:])
    with pytest.raises(ValueError, match="state: expected a last axis of 5, dv"):
        chunked_linear_attention(QUERY, KEY, VALUE, state=STATE, normalize=False)
    with pytest.raises(ValueError, match="chunk_size: expected at least 1"):
        chunked_linear_attention(QUERY, KEY, VALUE, chunk_size=0)
    with pytest.raises(ValueError, match="feature_map: expected"):
        parallel_linear_attention(QUERY, KEY, VALUE, feature_map="relu")
    with pytest.raises(ValueError, match="real: expected"):
        parallel_linear_attention(QUERY, KEY, VALUE, real=torch.ones(2, 6, dtype=torch.bool))
    with pytest.raises(TypeError, match="value: expected"):
        parallel_linear_attention(QUERY, KEY, VALUE.float())
