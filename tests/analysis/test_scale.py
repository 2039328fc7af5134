"""The simulation adds up what the counts say, in the limits where something is known."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tested_transformer.analysis.parallel_costs import sharded_bytes
from tested_transformer.analysis.scale import Layout, ModelSize, step_cost, training_flops

SMALL = ModelSize(parameters=1_000_000, layers=2, d_model=64, d_kv=32)


def test_one_gpu_sends_nothing():
    cost = step_cost(SMALL, Layout(), tokens=128, length=64)
    assert (cost.sharding, cost.heads, cost.ring) == (0, 0, 0)
    assert cost.memory > 16 * SMALL.parameters
    assert cost.flops == training_flops(SMALL, 128, 64)


def test_more_gpus_compute_less_and_send_the_parameters():
    one, many = (step_cost(SMALL, Layout(data=n), tokens=4096, length=64) for n in (2, 64))
    assert one.flops == 32 * many.flops
    assert one.memory > many.memory
    # two all-gathers of 2 bytes and a reduce-scatter of 4: 8 / 12 of float32 throughout
    assert many.sharding == pytest.approx(sharded_bytes(10**6, workers=64) * 8 / 12, abs=1)


def test_a_tensor_group_shards_its_part_only():
    split = step_cost(SMALL, Layout(data=4, tensor=2), tokens=512, length=64)
    whole = step_cost(SMALL, Layout(data=4), tokens=512, length=64)
    assert 2 * split.sharding == whole.sharding
    assert split.heads > 0
    assert 2 * split.flops == whole.flops


def test_a_ring_sends_keys_in_proportion_to_its_tokens():
    short, long = (step_cost(SMALL, Layout(ring=4), tokens=n, length=n).ring for n in (1024, 4096))
    assert long == 4 * short > 0


def test_flops_are_those_that_torch_counts():
    """Six per parameter and token; of attention torch counts the masked half as well."""
    length, d = 16, 8
    layers = nn.Sequential(nn.Linear(d, 3 * d, bias=False), nn.Linear(3 * d, d, bias=False))
    x = torch.randn(length, d, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        layers(x).sum().backward()
    size = ModelSize(sum(p.numel() for p in layers.parameters()), 0, d, d)
    assert counter.get_total_flops() == training_flops(size, length, length)
    with FlopCounterMode(display=False) as counter:
        query, key, value = (x.clone() for _ in range(3))
        ((query @ key.mT).softmax(-1) @ value).sum().backward()
    assert counter.get_total_flops() == 2 * training_flops(ModelSize(0, 1, d, d), length, length)


def test_tokens_that_the_workers_do_not_divide():
    with pytest.raises(
        ValueError, match=r"tokens: expected a multiple of data \* ring, 3, got 128"
    ):
        step_cost(SMALL, Layout(data=3), tokens=128, length=64)
