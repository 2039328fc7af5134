"""What chapter 19's pages count on: the plain ring, and the timetables of pipelines."""

import pytest
import torch

from tested_transformer.distributed.launch import run_workers
from tested_transformer.experiments import ch19_pipelines as schedules
from tested_transformer.experiments import ch19_ring as ring


@pytest.mark.parametrize("work", [ring.forward_and_backward, ring.by_package])
def test_a_ring_equals_one_process(work):
    results = run_workers(work, 13, "zigzag")
    torch.testing.assert_close(ring.gathered(results, 13), ring.in_one_process(13))


@pytest.mark.parametrize("world", [1, 2, 4, 7])
def test_zigzag_is_balanced_in_every_step(world):
    length = 6 * world  # chunks of three
    work = ring.visible_per_step("zigzag", length, world)
    assert (work == work[0]).all()
    assert work.sum() == length * (length + 1) // 2


@pytest.mark.parametrize("stages", [1, 2, 4, 5])
@pytest.mark.parametrize("micro_batches", [1, 3, 4, 8])
def test_schedules_have_one_bubble_and_keep_what_they_say(stages, micro_batches):
    for order, kept in (
        (schedules.all_forward_first, [micro_batches] * stages),
        (
            schedules.one_forward_one_backward,
            [min(micro_batches, stages - s) for s in range(stages)],
        ),
    ):
        table = schedules.run(order, stages, micro_batches)
        assert table.shape == (stages, 2 * (micro_batches + stages - 1))
        assert schedules.stored(table).tolist() == kept
        assert (table > 0).sum(1).tolist() == [micro_batches] * stages
