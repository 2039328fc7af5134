"""BitNet b1.58: equal to transformers' layers, what is ternary, what passes the gradient, bytes."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from same_numbers import shake
from tested_transformer.functional.ternary import (
    bit_linear,
    pack_ternary,
    quantize_activations,
    quantize_ternary,
    straight_through,
    unpack_ternary,
)
from tested_transformer.layers.bit_linear import BitLinear, PackedBitLinear

EPS = torch.finfo(torch.float32).eps


@pytest.fixture
def theirs():
    """transformers' module, without its compiler."""
    torch.compiler.set_stance("force_eager")
    yield pytest.importorskip("transformers.integrations.bitnet")
    torch.compiler.set_stance("default")


def layer(seed=0, bias=True, sizes=(12, 8), dtype=torch.float32):
    return shake(BitLinear(*sizes, bias=bias), seed).to(dtype)


def inputs(seed=0, dtype=torch.float32):
    return torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("bias", [False, True])
def test_equal_to_transformers_in_values_and_gradients(theirs, seed, bias):
    ours = layer(seed, bias)
    other = theirs.AutoBitLinear(12, 8, bias=bias, online_quant=True)
    other.load_state_dict(ours.state_dict())
    found = []
    for each in (ours, other):
        x = inputs(seed).requires_grad_()
        output = each(x)
        (output * torch.linspace(-1, 1, 8)).sum().backward()
        found.append([output.detach(), x.grad, each.weight.grad])
    for got, wanted in zip(*found, strict=True):
        largest = float(wanted.abs().max())
        assert largest > 0
        torch.testing.assert_close(got, wanted, rtol=0, atol=2 * 14 * EPS * largest)


@torch.no_grad()
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("bias", [False, True])
def test_the_packed_layer_equals_transformers_and_the_one_that_trains(theirs, seed, bias):
    ours = layer(seed, bias)
    packed = ours.packed()
    other = theirs.BitLinear(12, 8, bias=bias, dtype=torch.float32)
    other.weight.copy_(packed.weight)
    other.weight_scale.fill_(packed.weight_scale)
    if bias:
        other.bias.copy_(ours.bias)
    x = inputs(seed)
    got, largest = packed(x), float(ours(x).abs().max())
    torch.testing.assert_close(got, other(x), rtol=0, atol=8 * EPS * largest)
    torch.testing.assert_close(got, ours(x), rtol=0, atol=2 * 14 * EPS * largest)


@pytest.mark.parametrize("rows", [4, 8, 20])
def test_packing_equals_transformers(theirs, rows):
    values = torch.randint(-1, 2, (rows, 5), generator=torch.Generator().manual_seed(rows))
    values = values.to(torch.int8)
    packed = pack_ternary(values)
    assert torch.equal(packed, theirs.pack_weights(values.clone()))
    assert torch.equal(unpack_ternary(packed), values)
    assert torch.equal(unpack_ternary(packed).float(), theirs.unpack_weights(packed, torch.float32))


def test_three_values_and_exactly_three():
    """Also where the sum of a weight and a correction would round away from them."""
    weight = 1e3 + torch.randn(40, 30, generator=torch.Generator().manual_seed(1)).mul(1e-3)
    ternary = quantize_ternary(layer(3, sizes=(30, 40)).weight).dequantized()
    assert len(ternary.unique()) == 3
    passed = straight_through(weight, ternary)
    assert torch.equal(passed, ternary)
    assert not torch.equal(weight + (ternary - weight), ternary)  # the usual way of writing it


def test_activations_have_255_values_and_reach_the_largest():
    x = inputs(2)
    values, scale = quantize_activations(x)
    assert torch.equal(values, values.round())
    assert values.abs().amax(-1).eq(127).all()
    assert ((values / scale - x).abs() <= (0.5 + 1e-4) / scale).all()  # half a step


def test_the_gradient_is_that_of_a_linear_layer_with_the_quantized_numbers():
    ours, x = layer(5, dtype=torch.float64), inputs(5, torch.float64).requires_grad_()
    weight = quantize_ternary(ours.weight.detach()).dequantized().requires_grad_()
    given = quantize_activations(x.detach()).dequantized().requires_grad_()
    ours(x).square().sum().backward()
    functional.linear(given, weight, ours.bias.detach()).square().sum().backward()
    torch.testing.assert_close(ours.weight.grad, weight.grad)
    torch.testing.assert_close(x.grad, given.grad)


def test_zeros_stay_zeros():
    assert torch.equal(bit_linear(torch.zeros(2, 4), torch.zeros(3, 4)), torch.zeros(2, 3))


def test_sixteen_times_fewer_bytes():
    ours = layer(sizes=(64, 128), bias=False)
    packed = ours.packed()
    assert ours.weight.nbytes == 4 * 64 * 128
    assert packed.weight.nbytes == 64 * 128 // 4
    assert isinstance(packed, PackedBitLinear)
    assert isinstance(ours, nn.Linear)
    assert not list(packed.parameters())


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: pack_ternary(torch.zeros(6, 2, dtype=torch.int8)),
            ValueError,
            "values: expected a number of rows that 4 divides",
        ),
        (
            lambda: pack_ternary(torch.full((4, 2), 2, dtype=torch.int8)),
            ValueError,
            "values: expected at least -1 and at most 1",
        ),
        (lambda: pack_ternary(torch.zeros(4, 2)), TypeError, "values: expected an integer"),
        (
            lambda: unpack_ternary(torch.zeros(2, 3, dtype=torch.int64)),
            TypeError,
            "packed: expected torch.uint8, got torch.int64",
        ),
        (lambda: layer(sizes=(12, 6)).packed(), ValueError, "that 4 divides"),
        (lambda: layer()(torch.zeros(2, 11)), ValueError, "x: expected"),
        (lambda: bit_linear(torch.zeros(2, 4), torch.zeros(3, 5)), ValueError, "weight: expected"),
        (lambda: quantize_ternary(torch.ones(2).long()), TypeError, "weight: expected a floating"),
    ],
)
def test_bad_input_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
