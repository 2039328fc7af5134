"""A sharded model trains as one process does, and goes on after a death, on as many workers as are left."""

import pytest
import sharded_workers as work
import torch

from tested_transformer.distributed.launch import WorkerError, run_workers


def in_one_process(steps):
    net = work.model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    norms = []
    for step in range(steps):
        work.gradients_of(net, step, 0, 1)
        norms.append(torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5))
        optimizer.step()
    return [parameter.detach() for parameter in net.parameters()], norms


def test_parameters_and_norms_are_those_of_one_process(tmp_path):
    results = run_workers(work.resumed, tmp_path, 0, 3)
    parameters, norms = in_one_process(3)
    for found, own_norms, _ in results:
        torch.testing.assert_close(found, parameters)
        torch.testing.assert_close([norm.float() for norm in own_norms], norms)
    assert sum(own for _, _, own in results) == sum(each.numel() for each in parameters)
    assert max(own for _, _, own in results) < sum(each.numel() for each in parameters)


def test_saved_on_four_and_loaded_on_two(tmp_path):
    run_workers(work.resumed, tmp_path, 0, 2)
    expected, _ = in_one_process(4)
    for found, *_ in run_workers(work.resumed, tmp_path, 2, 4, num_workers=2):
        torch.testing.assert_close(found, expected)


def test_an_exchange_that_was_interrupted_is_finished(tmp_path):
    """The old checkpoint has left its name, and the new one does not have it yet."""
    run_workers(work.resumed, tmp_path, 0, 2, num_workers=2)
    (tmp_path / "checkpoint").rename(tmp_path / "checkpoint.new")
    (tmp_path / "checkpoint.old").mkdir()
    expected, _ = in_one_process(3)
    for found, *_ in run_workers(work.resumed, tmp_path, 2, 3, num_workers=2):
        torch.testing.assert_close(found, expected)
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize(("killed_step", "rank"), [(1, 0), (3, 2)])
def test_a_run_goes_on_from_its_last_checkpoint(tmp_path, killed_step, rank):
    with pytest.raises(WorkerError, match=f"worker {rank} of 3 ended: SIGKILL"):
        run_workers(work.dies_in_step, tmp_path, killed_step, rank, num_workers=3)
    alone = run_workers(work.resumed, tmp_path, killed_step, 5, num_workers=3)
    whole = run_workers(work.resumed, tmp_path / "another", 0, 5, num_workers=3)
    for (found, *_), (expected, *_) in zip(alone, whole, strict=True):
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_nothing_stored(tmp_path):
    with pytest.raises(WorkerError, match="expected a sharded checkpoint"):
        run_workers(work.nothing_stored, tmp_path, num_workers=2)
