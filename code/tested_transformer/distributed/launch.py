"""Several processes on one machine, started and ended together: what torchrun does for a script, for a function."""

from __future__ import annotations

import logging
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from ..bounds import PositiveFloat, PositiveInt, Where
from ..shapes import checked

__all__ = ["WorkerError", "run_workers"]


class WorkerError(RuntimeError):
    """A worker raised, ended by itself, or did not end in time; the others were ended, too."""


Importable = Annotated[
    Callable[..., Any],
    Where(
        "a function of a module, which another process can import",
        lambda function: (
            getattr(function, "__module__", "__main__") != "__main__"
            and "<" not in getattr(function, "__qualname__", "<")
        ),
    ),
]


@checked
def run_workers(
    function: Importable, *args: Any, num_workers: PositiveInt = 4, timeout: PositiveFloat = 60.0
) -> list[Any]:
    """Call function(*args) in each of several processes, connected by gloo; give the results, by rank.

    A worker finds its number by `torch.distributed.get_rank()`, and RANK, LOCAL_RANK and WORLD_SIZE in its
    environment, as under torchrun. The processes listen on this machine's own address alone, compute with
    one thread each, and end with the call: all of them, whatever happens.

    timeout: seconds, of the whole call and of each message.

    Raises: TypeError or ValueError that name the argument; WorkerError with the rank of the worker that
        failed first and its error, or after `timeout`.
    Source: pytorch.org/docs, torch.distributed and torch.multiprocessing.
    """
    with TemporaryDirectory() as folder:
        context = torch.multiprocessing.start_processes(
            _work, (function, args, folder, num_workers, timeout), num_workers, join=False,
            start_method=_start_method(function),
        )  # fmt: skip
        try:
            _wait(context, num_workers, time.monotonic() + timeout, timeout)
        finally:
            for process in context.processes:
                process.kill()
                process.join()
        results = [Path(folder, f"{rank}.pt") for rank in range(num_workers)]
        return [torch.load(path, weights_only=False) for path in results]


def _work(
    rank: int, function: Callable, args: tuple, folder: str, num_workers: int, timeout: float
) -> None:
    """What one worker does: join the group, call the function, store its result."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_workers)}
    torch.set_num_threads(1)
    _stay_on_this_machine()
    dist.init_process_group(
        "gloo", init_method=Path(folder, "meeting").as_uri(), rank=rank,
        world_size=num_workers, timeout=timedelta(seconds=timeout),
    )  # fmt: skip
    try:
        result = function(*args)
        dist.barrier()  # nobody leaves while another still expects a message
    except RuntimeError as error:
        if "gloo" not in str(error):
            raise
        time.sleep(1.0)  # the worker whose end this one has noticed is to be reported first
        raise WorkerError(f"the connection to another worker is lost: {error}") from error
    torch.save(result, Path(folder, f"{rank}.pt"))
    dist.destroy_process_group()


def _wait(context: Any, num_workers: int, deadline: float, timeout: float) -> None:
    """Wait until all workers have ended.

    Raises: WorkerError that names the worker that failed first, or those that are not done in time.
    """
    # torch says at warning level that it ends the other workers: the error that is raised says why.
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)
    try:
        while not context.join(max(0.0, deadline - time.monotonic())):
            if time.monotonic() >= deadline:
                late = [n for n, process in enumerate(context.processes) if process.is_alive()]
                raise WorkerError(
                    f"workers {late} of {num_workers} were not done after {timeout:g} seconds"
                )
    except ProcessRaisedException as error:
        last = str(error).strip().splitlines()[-1]
        raise WorkerError(f"worker {error.error_index} of {num_workers} raised {last}") from error
    except ProcessExitedException as error:
        how = error.signal_name or f"code {error.exit_code}"
        raise WorkerError(f"worker {error.error_index} of {num_workers} ended: {how}") from error


def _start_method(function: Callable) -> str:
    """Forked from one process that has imported everything, where the system can: half a second in all."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return "spawn"
    # Optimizers and torch's DDP import torch._dynamo at their first use, seconds in every worker.
    multiprocessing.set_forkserver_preload([__name__, "torch._dynamo", function.__module__])
    return "forkserver"


def _stay_on_this_machine() -> None:
    """Let gloo listen on the loopback interface alone, which has another name on each system."""
    if sys.platform != "win32":
        names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
        os.environ["GLOO_SOCKET_IFNAME"] = names[0]
