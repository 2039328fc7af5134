"""Bytes on paper = bytes that running workers send."""

import cost_workers as work
import pytest

from tested_transformer.analysis import parallel_costs as costs
from tested_transformer.distributed.launch import run_workers

PARAMETERS = sum(each.numel() for each in work.network().parameters())


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_data_parallelism_sends_its_gradients(workers):
    for sent in run_workers(work.data_parallel, num_workers=workers):
        expected = costs.data_parallel_bytes(PARAMETERS, workers=workers)
        assert sum(sent.values()) == pytest.approx(expected, abs=workers * 4)


@pytest.mark.parametrize("workers", [2, 4])
def test_sharding_sends_parameters_twice_and_gradients_once(workers):
    for sent in run_workers(work.sharded, num_workers=workers):
        assert sum(sent.values()) == costs.sharded_bytes(PARAMETERS, workers=workers)
        assert sent["_allgather_base_"] == 2 * sent["_reduce_scatter_base_"]


def test_heads_send_two_activations():
    for sent in run_workers(work.heads, num_workers=4):
        assert sum(sent.values()) == costs.head_parallel_bytes(
            10, 8, layers=1, workers=4, width=8
        )  # fmt: skip


def test_a_ring_sends_keys_values_and_their_gradients():
    batch, heads, length, d = 2, 3, 16, (4, 3)
    for sent in run_workers(work.ring, num_workers=4):
        numbers = batch * heads * length // 4 * sum(d) * 4
        ids = length // 4 * 8
        assert sum(sent.values()) == 3 * (numbers + ids) + 4 * (2 * numbers + ids)


def test_on_paper():
    assert costs.ring_attention_bytes(4, 6, workers=1) == 0
    assert costs.ring_attention_bytes(4, 6, workers=3) == 4 * (2 * (48 + 8) + 3 * (96 + 8))
    assert costs.sharded_memory(100, workers=4, largest_unit=10) == 400 + 80
    assert costs.data_parallel_memory(100, width=2) == 800
    assert costs.bubble_share(1, 5) == 0
    time = costs.step_seconds(6.0, 4.0, flops_per_second=2.0, bytes_per_second=1.0)
    assert (time.apart, time.overlapped) == (7.0, 4.0)
