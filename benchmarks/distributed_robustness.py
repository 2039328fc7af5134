"""Twenty sharded runs in a row, a worker killed in each at a random step: none hangs, and nothing is lost.

Each run is started, one of its workers is killed, and it goes on from the last checkpoint. In the end its parameters must
be those of a run that nobody disturbed, bit for bit. Also twenty undisturbed runs. It prints what was found.

Usage: python benchmarks/distributed_robustness.py [RUNS]
"""

from __future__ import annotations

import random
import sys
import time
from tempfile import TemporaryDirectory

import torch

from tested_transformer.distributed.launch import WorkerError, run_workers
from tested_transformer.experiments import ch19_sharding as workers

STEPS = 5
LIMIT = 60.0  # seconds, after which a run counts as hanging


def killed_run(step: int, rank: int) -> list[torch.Tensor]:
    """The parameters after all steps, of a run in which that worker is killed in that step, and which goes on.

    Raises: RuntimeError if the run ends in another way.
    """
    with TemporaryDirectory() as folder:
        try:
            run_workers(workers.train, folder, 0, STEPS, step, rank, timeout=LIMIT)
        except WorkerError as error:
            if f"worker {rank} of 4 ended: SIGKILL" not in str(error):
                raise RuntimeError(
                    f"killed {rank} in step {step}, and was told: {error}"
                ) from error
        else:
            raise RuntimeError(f"worker {rank} was to be killed in step {step}, and the run ended")
        return run_workers(workers.train, folder, step, STEPS, timeout=LIMIT)[0][0]


def main(runs: int) -> int:
    """Run them all; the number of runs that differ."""
    with TemporaryDirectory() as folder:
        expected = run_workers(workers.train, folder, 0, STEPS, timeout=LIMIT)[0][0]
    rng, differ, began, slowest = random.Random(0), 0, time.monotonic(), 0.0
    for number in range(runs):
        start = time.monotonic()
        step, rank = rng.randrange(STEPS), rng.randrange(4)
        found = killed_run(step, rank)
        with TemporaryDirectory() as folder:
            again = run_workers(workers.train, folder, 0, STEPS, timeout=LIMIT)[0][0]
        pairs = zip((*found, *again), (*expected, *expected), strict=True)
        same = all(torch.equal(*pair) for pair in pairs)
        differ += not same
        slowest = max(slowest, time.monotonic() - start)
        verdict = "the same numbers" if same else "OTHER NUMBERS"
        print(f"run {number + 1}: worker {rank} killed in step {step}: {verdict}", flush=True)
    seconds = time.monotonic() - began
    print(
        f"{runs} killed and {runs} undisturbed runs, {differ} differ, {seconds:.0f} s, slowest {slowest:.0f} s"
    )
    return differ


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20) > 0)
