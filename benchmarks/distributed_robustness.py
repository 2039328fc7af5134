"""Twenty sharded runs in a row, a worker killed in each at a random step: none hangs, and nothing is lost.

Each run is started, one of its workers is killed after a backward pass, and it goes on from the last checkpoint. In the end its parameters must
be those of a run that nobody disturbed, bit for bit. After each, the same training once more, undisturbed. A run that takes
longer than a minute counts as hanging, and ends the script with an error.

Usage: python benchmarks/distributed_robustness.py
"""

from __future__ import annotations

import random
import time
from functools import cache
from tempfile import TemporaryDirectory

import torch
from record import measure_missing

from tested_transformer.distributed.launch import WorkerError, run_workers
from tested_transformer.experiments import ch19_checkpoints as workers

NAME, RUNS = "distributed_robustness", 20
WHAT = (
    "sharded training on four workers: in each run a random worker is killed in a random step, after the backward pass and "
    "before the optimizer's step, and the run goes on from the last checkpoint; then one run undisturbed; same: both have, bit for bit, the parameters of the first run"
)
STEPS = 5
LIMIT = 60.0  # seconds, after which a run counts as hanging


def killed_run(step: int, rank: int) -> list[torch.Tensor]:
    """The parameters after all steps, of a run in which that worker is killed in that step, and which goes on.

    Raises: RuntimeError if the run ends in another way.
    """
    with TemporaryDirectory() as folder:
        try:
            run_workers(workers.train, folder, STEPS, step, rank, timeout=LIMIT)
        except WorkerError as error:
            if f"worker {rank} of 4 ended: SIGKILL" not in str(error):
                raise RuntimeError(
                    f"killed {rank} in step {step}, and was told: {error}"
                ) from error
        else:
            raise RuntimeError(f"worker {rank} was to be killed in step {step}, and the run ended")
        return run_workers(workers.train, folder, STEPS, timeout=LIMIT)[0]


@cache
def undisturbed() -> list[torch.Tensor]:
    """The parameters of a first run."""
    with TemporaryDirectory() as folder:
        return run_workers(workers.train, folder, STEPS, timeout=LIMIT)[0]


def measure(seed: int) -> dict:
    """A run with a worker killed at random, and one undisturbed, against the first."""
    rng, expected, start = random.Random(seed), undisturbed(), time.monotonic()
    step, rank = rng.randrange(STEPS), rng.randrange(4)
    found = killed_run(step, rank)
    with TemporaryDirectory() as folder:
        again = run_workers(workers.train, folder, STEPS, timeout=LIMIT)[0]
    pairs = zip((*found, *again), (*expected, *expected), strict=True)
    same = all(torch.equal(*pair) for pair in pairs)
    seconds = round(time.monotonic() - start, 1)
    return {"seed": seed, "killed": rank, "step": step, "same": same, "seconds": seconds}


if __name__ == "__main__":
    runs = ({"seed": seed} for seed in range(RUNS))
    measure_missing(NAME, WHAT, runs, measure, ("seed", "killed", "step", "same", "seconds"))
