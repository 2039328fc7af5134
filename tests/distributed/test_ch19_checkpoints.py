"""Chapter 19's page about checkpoints: an incomplete one is passed over, and a forgotten step number is found."""

import sharded_workers as work
import torch

from tested_transformer.distributed.launch import run_workers
from tested_transformer.experiments import ch19_checkpoints as workers


def test_the_newest_complete_checkpoint_is_loaded(tmp_path):
    run_workers(workers.train, tmp_path, 2, num_workers=2)
    incomplete = tmp_path / "step-000003"
    incomplete.mkdir()
    (incomplete / "__0_0.distcp").write_bytes(b"half of it")
    expected = workers.train_alone(4)
    for found in run_workers(workers.train, tmp_path, 4, num_workers=2):
        torch.testing.assert_close(found, expected)


def test_without_the_step_number_the_first_steps_are_done_twice(tmp_path):
    run_workers(workers.train, tmp_path, 2, num_workers=2)
    found = run_workers(work.from_step_0, tmp_path, 4, num_workers=2)[0]
    assert not any(
        torch.allclose(*pair, rtol=1e-3) for pair in zip(found, workers.train_alone(4), strict=True)
    )
