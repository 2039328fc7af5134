"""Ring attention over workers = attention in one process, forward and backward."""

import pytest
import ring_workers as work
import torch

from tested_transformer.distributed.launch import run_workers
from tested_transformer.distributed.ring_attention import contiguous_shard, zigzag_shard
from tested_transformer.functional.attention import attention


def gathered(results, length):
    """The workers' tensors, each token at its position; padding must be 0."""
    whole = [each.new_full((2, 3, length, each.shape[-1]), torch.nan) for each in results[0][1:]]
    for ids, *parts in results:
        for full, part in zip(whole, parts, strict=True):
            assert not part[:, :, ids < 0].any()
            full[:, :, ids[ids >= 0]] = part[:, :, ids >= 0]
    return whole


def in_one_process(length, causal, dtype, size=1.0):
    query, key, value, towards = work.tensors(length, dtype)
    inputs = [each.requires_grad_() for each in (query * size, key, value)]
    output = attention(*inputs, causal=causal, backend="plain")
    return [output.detach(), *torch.autograd.grad(output, inputs, towards)]


@pytest.mark.parametrize("shard", ["zigzag", "contiguous"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("length", "num_workers"), [(16, 4), (13, 4), (3, 4), (7, 3), (6, 1)])
def test_one_process_gives_the_same(length, num_workers, causal, shard):
    results = run_workers(
        work.attend, length, shard, causal, torch.float64, num_workers=num_workers
    )
    torch.testing.assert_close(
        gathered(results, length), in_one_process(length, causal, torch.float64)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes(dtype):
    results = run_workers(work.attend, 13, "zigzag", True, dtype)
    torch.testing.assert_close(gathered(results, 13), in_one_process(13, True, dtype))


def test_scores_of_a_thousand():
    results = run_workers(work.attend, 13, "zigzag", True, torch.float64, 1000.0)
    expected = in_one_process(13, True, torch.float64, 1000.0)
    torch.testing.assert_close(gathered(results, 13), expected)


@pytest.mark.parametrize("shard", [contiguous_shard, zigzag_shard])
@pytest.mark.parametrize(("length", "world"), [(0, 2), (1, 3), (16, 4), (17, 4), (5, 1)])
def test_every_token_is_somewhere_once(shard, length, world):
    parts = [shard(length, rank=n, world_size=world) for n in range(world)]
    assert len({len(part) for part in parts}) == 1
    ids = torch.cat(parts)
    assert sorted(ids[ids >= 0].tolist()) == list(range(length))


def test_zigzag_gives_all_workers_the_same_to_do():
    even = run_workers(work.count_matmuls, 64, "zigzag")
    uneven = run_workers(work.count_matmuls, 64, "contiguous")
    assert len(set(even)) == 1
    assert max(uneven) > 1.5 * even[0]
    assert sum(even) == sum(uneven)
