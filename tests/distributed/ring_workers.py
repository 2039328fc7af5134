"""What the workers of test_ring_attention do."""

import torch
import torch.distributed as dist

from tested_transformer.distributed import ring_attention as ring

SHARDS = {"zigzag": ring.zigzag_shard, "contiguous": ring.contiguous_shard}


def tensors(length, dtype):
    made = torch.Generator().manual_seed(length)
    widths = (4, 4, 3, 3)  # query, key, value and the gradient of the output
    return [torch.randn(2, 3, length, d, generator=made).to(dtype) for d in widths]


def attend(length, shard, causal, dtype, size=1.0):
    """This worker's positions, output and gradients."""
    rank, world = dist.get_rank(), dist.get_world_size()
    ids = SHARDS[shard](length, rank=rank, world_size=world)
    made = tensors(length, dtype)
    made[0] = made[0] * size
    own = [torch.nn.functional.pad(each, (0, 0, 0, 1))[:, :, ids] for each in made]
    *inputs, towards = own
    inputs = [each.requires_grad_() for each in inputs]
    output = ring.ring_attention(*inputs, ids, causal=causal)
    output.backward(towards)
    return ids, output.detach(), *(each.grad for each in inputs)


def count_matmuls(length, shard):
    """How many scores this worker computes."""
    counted = []
    real = ring.partial_softmax

    def counting(scores, value):
        counted.append(scores[0, 0].numel())
        return real(scores, value)

    ring.partial_softmax = counting
    attend(length, shard, True, torch.float32)
    return sum(counted)
