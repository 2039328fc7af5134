"""Workers that start, talk and end; and what becomes of those that raise, die or hang."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from tested_transformer.distributed.launch import WorkerError, run_workers


def add_ranks(offset):
    total = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(total)
    return total + offset, os.environ["RANK"], torch.get_num_threads()


def raise_in(rank):
    if dist.get_rank() == rank:
        raise KeyError("no such token")
    dist.all_reduce(torch.ones(1))


def die_in(rank):
    if dist.get_rank() == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))


def hang_in(rank):
    if dist.get_rank() == rank:
        time.sleep(60)
    dist.all_reduce(torch.ones(1))


def addresses():
    mine = os.getpid()
    inodes = {os.readlink(f"/proc/{mine}/fd/{n}") for n in os.listdir(f"/proc/{mine}/fd") if
              os.path.exists(f"/proc/{mine}/fd/{n}")}  # fmt: skip
    found = []
    for name in ("tcp", "tcp6"):
        with open(f"/proc/net/{name}") as lines:
            for line in list(lines)[1:]:
                parts = line.split()
                if parts[3] == "0A" and f"socket:[{parts[9]}]" in inodes:
                    found.append(parts[1].split(":")[0])
    return found


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_results_by_rank(num_workers):
    results = run_workers(add_ranks, 0.5, num_workers=num_workers)
    total = num_workers * (num_workers - 1) / 2 + 0.5
    assert results == [(torch.tensor([total]), str(n), 1) for n in range(num_workers)]


@pytest.mark.parametrize("rank", [0, 2])
def test_the_worker_that_raised_is_named(rank):
    with pytest.raises(WorkerError, match=f"worker {rank} of 3 raised KeyError: 'no such token'"):
        run_workers(raise_in, rank, num_workers=3)


@pytest.mark.parametrize("rank", [0, 2])
def test_the_worker_that_died_is_named(rank):
    with pytest.raises(WorkerError, match=f"worker {rank} of 3 ended: SIGKILL"):
        run_workers(die_in, rank, num_workers=3)


def test_workers_that_hang_are_ended():
    began = time.monotonic()
    with pytest.raises(WorkerError, match=r"not done after 2 seconds|lost"):
        run_workers(hang_in, 1, num_workers=2, timeout=2.0)
    assert time.monotonic() - began < 30


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="needs Linux's /proc")
def test_only_this_machine_is_listened_to():
    local = {"0100007F", "00000000000000000000000001000000"}
    found = [address for own in run_workers(addresses, num_workers=2) for address in own]
    assert found
    assert set(found) <= local


@pytest.mark.parametrize("function", [lambda: 1, "text"], ids=["a lambda", "no function"])
def test_a_function_that_no_other_process_can_import(function):
    with pytest.raises((TypeError, ValueError), match="function"):
        run_workers(function)
