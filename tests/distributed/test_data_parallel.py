"""Data parallelism by hand = torch's = one process on the whole batch; and what makes it subtly wrong."""

import data_workers as work
import pytest
import torch
from torch.utils.data import DistributedSampler

from tested_transformer.distributed.data_parallel import average_gradients, indices_of_worker
from tested_transformer.distributed.launch import WorkerError, run_workers


def on_the_whole_batch(steps=3):
    net, (x, y) = work.model(), work.data()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        (work.loss_sum(net, x, y) / len(x)).backward()
        optimizer.step()
    return [parameter.detach() for parameter in net.parameters()]


@pytest.mark.parametrize("kind", ["ours", "torch"])
def test_parameters_are_those_of_one_process(kind):
    expected = on_the_whole_batch()
    for found in run_workers(work.train, kind):
        torch.testing.assert_close(found, expected)


def whole_gradients():
    net, (x, y) = work.model(), work.data()
    (work.loss_sum(net, x, y) / len(x)).backward()
    return [parameter.grad for parameter in net.parameters()]


def test_ragged_batches_have_one_mean():
    for found in run_workers(work.ragged, True):
        torch.testing.assert_close(found, whole_gradients())


def test_a_mean_of_means_is_another_gradient():
    found = run_workers(work.ragged, False)[0]
    assert not torch.allclose(found[0], whole_gradients()[0], rtol=0.1)


def test_a_parameter_that_one_worker_uses():
    net, (x, y) = work.model(), work.data()
    work.loss_sum(net, x[0::4], y[0::4]).backward()
    for found in run_workers(work.unused):
        torch.testing.assert_close(found, net[0].bias.grad / 4)


@pytest.mark.parametrize("max_norm", [1.0, 100.0])
def test_clipping_by_the_norm_of_all_parts(max_norm):
    parts = [torch.tensor([n + 1.0, n + 1.0, -float(n)], requires_grad=True) for n in range(4)]
    for part in parts:
        part.grad = part.detach().clone()
    norm = torch.nn.utils.clip_grad_norm_(parts, max_norm)
    for (found, clipped), part in zip(run_workers(work.clipped, max_norm), parts, strict=True):
        torch.testing.assert_close(found.float(), norm)
        torch.testing.assert_close(clipped, part.grad)


def test_no_token_anywhere():
    with pytest.raises(WorkerError, match="count: expected a token on one worker at least"):
        run_workers(work.no_tokens, num_workers=2)


def test_outside_a_group(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    with pytest.raises(ValueError, match="model: expected a call in a worker of a process group"):
        average_gradients(work.model())


@pytest.mark.parametrize(("length", "world"), [(12, 4), (13, 4), (3, 4), (1, 4), (7, 1)])
def test_the_order_is_that_of_torch(length, world):
    for rank in range(world):
        theirs = DistributedSampler(range(length), world, rank, seed=5)
        for epoch in range(2):
            theirs.set_epoch(epoch)
            ours = indices_of_worker(length, rank=rank, world_size=world, epoch=epoch, seed=5)
            assert ours.tolist() == list(theirs)


def test_two_epochs_differ():
    first, second = (
        indices_of_worker(20, rank=0, world_size=2, epoch=epoch).tolist() for epoch in (0, 1)
    )
    assert first != second
