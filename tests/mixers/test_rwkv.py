"""WKV: three forms of one weighted mean, equal to transformers' loop, finite for keys of any size."""

import pytest
import torch

from same_numbers import assert_float32_same, assert_same_numbers
from tested_transformer.layers.rwkv import ChannelMix, TimeMix, token_shift
from tested_transformer.mixers.rwkv import chunked_wkv, parallel_wkv, recurrent_wkv
from tested_transformer.specs.judge import judge
from tested_transformer.specs.rwkv.spec import WKV

FORMS = {"recurrent": recurrent_wkv, "parallel": parallel_wkv, "chunked": chunked_wkv}
EACH = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
TOKENS = ("key", "value")


def numbers(*shape, seed=1):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def arguments(batch=2, length=7, features=5):
    return {
        "key": 2 * numbers(batch, length, features),
        "value": numbers(batch, length, features, seed=2),
        "log_decay": -numbers(features, seed=3).exp(),
        "bonus": numbers(features, seed=4),
    }


def seen(batch=2, features=5):
    """A state after two tokens."""
    given = arguments(batch, 2, features)
    return recurrent_wkv(**given | {"key": given["key"] + 1})[1]


def runs(form, given, **options):
    """Output, state and every gradient, as a function of a dtype."""

    def run(dtype):
        own = {name: each.clone().to(dtype).requires_grad_() for name, each in given.items()}
        output, state = form(**own, **options)
        total = (output * numbers(*output.shape, seed=8).to(dtype)).sum()
        total = total + (state[:, :2] * numbers(*state[:, :2].shape, seed=9).to(dtype)).sum()
        total.backward()
        gradients = [each.grad for each in own.values()]
        return {"output": [output], "state": [state], "gradients": gradients}

    return run


@EACH
def test_the_spec(form):
    verdict = judge(WKV, form, seed=1)
    assert verdict.passed, verdict


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 6, 7, 8, 100])
@pytest.mark.parametrize("with_state", [False, True])
def test_chunks_of_any_size_and_their_gradients(chunk_size, with_state):
    given = arguments() | ({"state": seen()} if with_state else {})
    chunked = runs(chunked_wkv, given, chunk_size=chunk_size)
    for other in (recurrent_wkv, parallel_wkv):
        assert_same_numbers(chunked, runs(other, given))
        assert_float32_same(chunked, runs(other, given))


@EACH
def test_it_is_a_weighted_mean(form):
    """Equation 14, without any maximum, token by token."""
    given = arguments()
    output, state = form(**given)
    key, value, decay, bonus = given.values()
    for i in range(7):
        weights = [(key[:, j] + (i - 1 - j) * decay).exp() for j in range(i)]
        weights = torch.stack([*weights, (key[:, i] + bonus).exp()], 1)
        wanted = (weights * value[:, : i + 1]).sum(1) / weights.sum(1)
        torch.testing.assert_close(output[:, i], wanted)
    weights = torch.stack([(key[:, j] + (6 - j) * decay).exp() for j in range(7)], 1)
    torch.testing.assert_close(state[:, 1] * state[:, 2].exp(), weights.sum(1))
    torch.testing.assert_close(state[:, 0] * state[:, 2].exp(), (weights * value).sum(1))


@EACH
def test_equal_to_transformers_loop(form):
    hf = pytest.importorskip("transformers.models.rwkv.modeling_rwkv")
    given = arguments(length=9)

    def theirs(key, value, log_decay, bonus):
        output, state = hf.rwkv_linear_attention_cpu(
            (-log_decay).log(), bonus, key, value, return_state=True
        )
        return output, torch.stack(state, 1)

    assert_float32_same(runs(form, given), runs(theirs, given))


@EACH
def test_a_state_is_handed_on(form):
    given = arguments()
    whole, last = form(**given)
    state, outputs = None, []
    for part in zip(*(given[n].split(3, 1) for n in TOKENS), strict=True):
        output, state = form(**given | dict(zip(TOKENS, part, strict=True)), state=state)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, 1), whole)
    torch.testing.assert_close(state, last)


@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [80.0, -80.0, 800.0, 1e4])
def test_keys_of_any_size_stay_finite(form, dtype, size):
    """exp(80) fits into float32, the sum of a few hundred does not; exp(800) fits nowhere."""
    given = arguments(length=40)
    given["key"] = given["key"] + size
    found = runs(form, given)(dtype)
    assert all(bool(each.isfinite().all()) for group in found.values() for each in group)
    plain, _ = form(**arguments(length=40))  # a constant on all keys changes no weight
    rounding = 16 * torch.finfo(dtype).eps * (abs(size) + 10)  # of the keys themselves
    torch.testing.assert_close(found["output"][0].double(), plain, rtol=rounding, atol=rounding)


@EACH
@pytest.mark.parametrize("places", [slice(0, 3), slice(4, None), slice(2, 5), slice(None)])
def test_padding_enters_no_state(form, places):
    given, real = arguments(), torch.ones(2, 7, dtype=torch.bool)
    real[1, places] = False
    for state in (None, seen()):
        output, last = form(**given, state=state, real=real)
        kept = {n: given[n][1:, real[1]] for n in TOKENS}
        own = None if state is None else state[1:]
        alone, wanted = form(**given | kept, state=own)
        torch.testing.assert_close(output[1:, real[1]], alone)
        torch.testing.assert_close(last[1:], wanted)


@EACH
def test_an_empty_state_after_padding_alone(form):
    """Its maximum is -inf, which must not become NaN when real tokens follow."""
    given, real = arguments(), torch.zeros(2, 7, dtype=torch.bool)
    _, state = form(**given, real=real)
    assert bool((state[:, 2] == -torch.inf).all())
    output, _ = form(**given, state=state)
    torch.testing.assert_close(output, form(**given)[0])


@EACH
@pytest.mark.parametrize("length", [0, 1])
def test_short_texts(form, length):
    given = arguments(length=length)
    output, state = form(**given, state=seen())
    assert output.shape == (2, length, 5)
    if length == 0:
        torch.testing.assert_close(state, seen())
    else:
        torch.testing.assert_close(form(**given)[0], given["value"])  # the only token there is


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_keeps_its_dtype_and_a_wide_state(dtype):
    low = {name: each.to(dtype) for name, each in arguments().items()}
    for form in FORMS.values():
        output, state = form(**low)
        assert (output.dtype, state.dtype) == (dtype, torch.float32)
        wide = form(**{name: each.float() for name, each in low.items()})[0]
        torch.testing.assert_close(output, wide.to(dtype))


# --- Layers ---------------------------------------------------------------------------------------


def test_token_shift():
    x = numbers(2, 5, 3)
    found, last = token_shift(x)
    torch.testing.assert_close(found, torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1))
    torch.testing.assert_close(last[..., 0], x[:, -1])
    step, _ = token_shift(x[:, :1], state=last)
    assert step.shape == (2, 1, 3)  # not (2, 2, 3), as where (B, D) broadcasts
    torch.testing.assert_close(step[:, 0], x[:, -1])


@pytest.mark.parametrize("chunk", [1, 2, 5, 9])
def test_layers_in_chunks(chunk):
    x, time, channel = numbers(2, 9, 6), TimeMix(6, d_inner=4).double(), ChannelMix(6).double()
    for layer in (time, channel):
        kept, outputs = {}, []
        for piece in x.split(chunk, 1):
            output, kept = layer(piece, **kept)
            outputs.append(output)
        torch.testing.assert_close(torch.cat(outputs, 1), layer(x)[0])


def test_every_parameter_counts():
    for layer in (TimeMix(6, d_inner=4), ChannelMix(6)):
        layer(numbers(2, 9, 6).float())[0].square().sum().backward()
        for name, parameter in layer.named_parameters():
            assert bool((parameter.grad != 0).any()), name


@pytest.mark.plain_types
def test_bad_input_is_refused():
    given = arguments()
    with pytest.raises(ValueError, match="value: expected"):
        recurrent_wkv(**given | {"value": given["value"][:, :3]})
    with pytest.raises(ValueError, match="log_decay: expected"):
        parallel_wkv(**given | {"log_decay": given["log_decay"][:3]})
    with pytest.raises(ValueError, match="state: expected"):
        recurrent_wkv(**given, state=torch.zeros(2, 2, 5, dtype=torch.float64))
    with pytest.raises(ValueError, match="chunk_size: expected at least 1"):
        chunked_wkv(**given, chunk_size=0)
    with pytest.raises(TypeError, match="value: expected"):
        chunked_wkv(**given | {"value": given["value"].float()})
    with pytest.raises(ValueError, match="d_model: expected at least 1"):
        TimeMix(0)
