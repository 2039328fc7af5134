"""A short causal convolution: equal to torch's, in chunks of any size, with padding anywhere."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from same_numbers import assert_float32_same, assert_same_numbers, in_dtype, shake
from tested_transformer.layers.short_convolution import ShortConvolution, short_convolution
from tested_transformer.specs.judge import judge
from tested_transformer.specs.state_spaces.spec import SHORT_CONVOLUTION


def numbers(*shape, seed=1):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


X, WEIGHT, BIAS = numbers(2, 7, 5), numbers(5, 4, seed=2), numbers(5, seed=3)
STATE = numbers(2, 5, 3, seed=4)


def test_the_spec():
    verdict = judge(SHORT_CONVOLUTION, short_convolution, seed=1)
    assert verdict.passed, verdict


@pytest.mark.parametrize("width", [1, 2, 4, 9])
@pytest.mark.parametrize("bias", [True, False])
def test_equal_to_torch_in_outputs_and_gradients(width, bias):
    ours = shake(ShortConvolution(5, width=width, bias=bias), 0)
    theirs = nn.Conv1d(5, 5, width, groups=5, padding=width - 1, bias=bias)
    theirs.load_state_dict(ours.state_dict())

    def run(dtype, module):
        twin, x = in_dtype(module, dtype), X.clone().to(dtype).requires_grad_()
        y = twin(x)[0] if module is ours else twin(x.mT)[..., :7].mT
        (y * numbers(*y.shape, seed=5).to(dtype)).sum().backward()
        return {"y": [y], "gradients": [x.grad, *(each.grad for each in twin.parameters())]}

    assert_same_numbers(lambda dtype: run(dtype, ours), lambda dtype: run(dtype, theirs))
    assert_float32_same(lambda dtype: run(dtype, ours), lambda dtype: run(dtype, theirs))


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("width", [1, 2, 4, 9])
def test_chunks_hand_on_their_state_and_its_gradient(chunk, width):
    """Chunks shorter than the state: it holds tokens of several of them."""
    weight = numbers(5, width, seed=2)

    def run(length):
        x, kept = X.clone().requires_grad_(), numbers(2, 5, width - 1, seed=4).requires_grad_()
        state, outputs = kept, []
        for piece in x.split(length, 1):
            y, state = short_convolution(piece, weight, BIAS, state=state)
            outputs.append(y)
        y = torch.cat(outputs, 1)
        total = (y * numbers(*y.shape, seed=5)).sum() + (
            state * numbers(*state.shape, seed=6)
        ).sum()
        return y, state, *torch.autograd.grad(total, (x, kept), allow_unused=width == 1)

    for found, wanted in zip(run(chunk), run(7), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("places", [slice(0, 3), slice(5, None), slice(2, 5), slice(None)])
def test_padding_anywhere_does_nothing(places):
    real = torch.ones(2, 7, dtype=torch.bool)
    real[1, places] = False
    x = X.masked_fill(~real[..., None], torch.nan).requires_grad_()
    y, state = short_convolution(x, WEIGHT, BIAS, state=STATE, real=real)
    for row in range(2):
        own, kept = short_convolution(X[row:][:1, real[row]], WEIGHT, BIAS, state=STATE[row:][:1])
        torch.testing.assert_close(y[row, real[row]], own[0])
        torch.testing.assert_close(state[row], kept[0])
    assert not y[~real].any()
    gradient = torch.autograd.grad(y.sum() + state.sum(), x)[0]
    assert bool((gradient[~real] == 0).all())


def test_the_first_token_reads_the_state():
    y, state = short_convolution(X[:, :1], WEIGHT, state=STATE)
    whole = torch.cat([STATE, X[:, :1].mT], -1)
    torch.testing.assert_close(y[:, 0], (whole * WEIGHT).sum(-1))
    torch.testing.assert_close(state, whole[..., 1:])


@pytest.mark.parametrize("shape", [(0, 4, 5), (2, 0, 5)])
def test_nothing_to_convolve(shape):
    y, state = short_convolution(torch.zeros(shape), WEIGHT.float())
    assert y.shape == shape
    assert state.shape == (shape[0], 5, 3)
    assert functional.silu(y).shape == shape


@pytest.mark.plain_types
def test_bad_input_is_refused():
    with pytest.raises(
        ValueError, match="state: expected 3 tokens, one less than the width, got 2"
    ):
        short_convolution(X, WEIGHT, state=STATE[..., :2])
    with pytest.raises(ValueError, match="weight: expected .*5"):
        short_convolution(X, WEIGHT[:4])
    with pytest.raises(ValueError, match="width: expected at least 1"):
        ShortConvolution(5, width=0)
    with pytest.raises(TypeError, match="x: expected"):
        ShortConvolution(5)(X)
    with pytest.raises(ValueError, match="real: expected"):
        short_convolution(X, WEIGHT, real=torch.ones(2, 6, dtype=torch.bool))
