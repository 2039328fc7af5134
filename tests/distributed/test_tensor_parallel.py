"""Heads on several workers = one layer, forward and backward."""

import pytest
import sharded_workers as work
import torch

from tested_transformer.distributed.launch import WorkerError, run_workers


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("kv_heads", "num_workers"), [(4, 4), (2, 2), (4, 1)])
def test_one_layer_gives_the_same(kv_heads, num_workers, bias):
    whole, x, towards = work.attention(kv_heads, bias)
    expected = whole(x.requires_grad_(), causal=True)
    expected.backward(towards)
    results = run_workers(work.heads, kv_heads, bias, num_workers=num_workers)
    for output, by_x, _, by_bias in results:
        torch.testing.assert_close(output, expected.detach())
        torch.testing.assert_close(by_x, x.grad)
        if bias:
            torch.testing.assert_close(by_bias, whole.output.bias.grad)
    by_weights = [torch.cat(parts) for parts in zip(*(own for *_, own, _ in results), strict=True)]
    wanted = [whole.query.weight.grad, whole.key.weight.grad, whole.output.weight.grad.mT]
    torch.testing.assert_close(by_weights, wanted)


def test_heads_that_the_workers_do_not_divide():
    with pytest.raises(
        WorkerError, match="whole.num_kv_heads: expected a number that the 4 workers"
    ):
        run_workers(work.heads, 2, False)
