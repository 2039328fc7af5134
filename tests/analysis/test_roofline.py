"""Counts on paper against counts of a function at work, and the roofline."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from tested_transformer import attention, causal_mask
from tested_transformer.analysis.roofline import (
    DEVICES,
    Counted,
    attainable,
    attention_flops,
    decoding_cost,
    least_seconds,
    measure_traffic,
    plain_bytes,
    tiled_bytes,
)
from tested_transformer.functional.online_softmax import tiled_attention

H100 = DEVICES["H100 SXM"]


def plain(query, key, value):
    return (query * query.shape[-1] ** -0.5 @ key.mT).softmax(-1) @ value


def inputs(length, keys, d, heads=1):
    return [torch.randn(heads, n, d, requires_grad=True) for n in (length, keys, keys)]


def test_flops_equal_the_counter_of_torch():
    query, key, value = inputs(5, 7, 4, heads=3)
    with FlopCounterMode(display=False) as forward:
        output = plain(query, key, value)
    assert forward.get_total_flops() == attention_flops(5, 7, 4, heads=3)
    with FlopCounterMode(display=False) as back:
        output.sum().backward()
    recomputed = (
        2 * 5 * 7 * 4 * 3
    )  # the tiled backward pass makes the scores again: one product more
    total = forward.get_total_flops() + back.get_total_flops() + recomputed
    assert total == attention_flops(5, 7, 4, heads=3, backward=True)


@pytest.mark.parametrize(("length", "keys"), [(6, 6), (3, 8), (8, 3)])
def test_causal_flops_count_the_pairs_that_are_seen(length, keys):
    pairs = int(causal_mask(length, keys).sum())
    assert attention_flops(length, keys, 4, causal=True) == 4 * 4 * pairs


@pytest.mark.parametrize(("length", "keys", "d", "heads"), [(16, 12, 4, 1), (5, 9, 8, 3)])
def test_plain_bytes_equal_what_the_operations_read_and_write(length, keys, d, heads):
    found = measure_traffic(plain, *inputs(length, keys, d, heads))
    assert found == plain_bytes(length, keys, d, heads=heads, item=4)


@settings(max_examples=40)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 5), st.booleans())
def test_tiled_bytes_equal_what_the_loop_loads(length, keys, tile, causal):
    tensors = [Counted.of(t.detach()) for t in inputs(length, keys, 4)]
    output, lse = tiled_attention(*tensors, tile=tile, causal=causal)
    loaded = sum(t.bytes_read for t in tensors)
    stored = output.numel() * output.element_size() + lse.numel() * lse.element_size()
    counted = tiled_bytes(length, keys, 4, rows=tile, cols=tile, causal=causal, item=4)
    assert loaded + stored == counted


def test_counted_tensors_give_the_same_numbers():
    query, key, value = (t.detach() for t in inputs(5, 7, 4))
    counted = [Counted.of(t.clone()) for t in (query, key, value)]
    output, _ = tiled_attention(*counted, tile=2)
    assert type(output) is torch.Tensor
    assert torch.allclose(output, attention(query, key, value, backend="plain"), atol=1e-6)


def test_views_and_numbers_cost_nothing():
    x = torch.ones(4, 6)
    assert measure_traffic(lambda t: t.mT.reshape(2, 2, 6).unsqueeze(0), x) == 2 * 4 * 24  # a copy
    assert measure_traffic(lambda t: t.mT.unsqueeze(0)[:, 1:], x) == 0
    assert measure_traffic(lambda t: t * 2, x) == 2 * 4 * 24


def test_a_decoding_step_does_as_many_operations_a_byte_as_heads_share_a_cache():
    for groups in (1, 2, 8):
        flops, num_bytes = decoding_cost(100_000, 128, heads=8, groups=groups, item=2)
        assert flops / num_bytes == pytest.approx(8 / groups, rel=1e-3)


def test_the_roof():
    assert attainable(0.0, H100) == 0
    assert attainable(H100.ridge, H100) == pytest.approx(H100.flops)
    assert attainable(math.nextafter(H100.ridge, 0) / 2, H100) == pytest.approx(H100.flops / 2)
    assert attainable(1e9, H100) == H100.flops
    assert least_seconds(H100.flops, 1.0, H100) == pytest.approx(1)
    assert least_seconds(1.0, H100.bandwidth, H100) == pytest.approx(1)
    assert least_seconds(0.0, H100.bandwidth, H100) == pytest.approx(1)
    assert least_seconds(H100.flops, 0.0, H100) == pytest.approx(1)


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: attention_flops(0, 1, 1), ValueError, "length: expected at least 1"),
        (lambda: attention_flops(1, 1, 1, causal=1), TypeError, "causal: expected True or False"),
        (lambda: plain_bytes(1, 1.5, 1), TypeError, "keys: expected an int"),
        (lambda: tiled_bytes(1, 1, 1, rows=0, cols=1), ValueError, "rows: expected at least 1"),
        (
            lambda: decoding_cost(1, 1, heads=3, groups=2),
            ValueError,
            "groups: expected at least 1 and a number that divides heads",
        ),
        (lambda: attainable(-1, H100), ValueError, "intensity: expected at least 0"),
        (lambda: attainable(1, "H100"), TypeError, "device: expected a Device, got str"),
        (lambda: measure_traffic(3), TypeError, "function: expected a function"),
    ],
)
def test_refused(call, kind, message):
    with pytest.raises(kind, match=message):
        call()
