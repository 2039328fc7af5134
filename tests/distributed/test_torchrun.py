"""The script for a cluster, on two processes of this machine, under torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def torchrun(folder, steps, processes):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command += [str(processes), str(ROOT / "benchmarks" / "train_sharded.py")]
    done = subprocess.run(
        [*command, "--folder", str(folder), "--steps", str(steps)], capture_output=True, text=True,
        timeout=240, env={**os.environ, "PYTHONPATH": str(ROOT / "code"), "OMP_NUM_THREADS": "1",
                          "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("step")]
    return {int(words[1]): float(words[3]) for words in lines}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="torchrun needs libuv there")
def test_a_run_goes_on_with_another_number_of_processes(tmp_path):
    whole = torchrun(tmp_path / "whole", 4, 2)
    assert list(whole) == [1, 2, 3, 4]
    assert whole[4] < whole[1]
    first = torchrun(tmp_path / "two", 2, 2)
    second = torchrun(tmp_path / "two", 4, 1)
    assert list(second) == [3, 4]
    assert {**first, **second} == pytest.approx(whole, abs=2e-4)  # printed with four decimals
