"""A plugin of pytest for the chapters: each kernel is forked from one process that has imported what most of them import.

A kernel of its own takes seconds to import PyTorch, matplotlib and transformers, 150 times. A fork has them at
once, and of the process before it nothing but imported modules: each has its own session, folder, environment
and random numbers. Where a system cannot fork safely, kernels are started as always; so they are when
tools/refresh.py stores a chapter.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from importlib import import_module

IMPORTED = (
    "torch", "torch._dynamo", "torch.utils.flop_counter", "matplotlib.pyplot", "transformers.modeling_utils",
    "tested_transformer.plotting", "tested_transformer.specs", "ipykernel.kernelapp",
)  # fmt: skip


class Forked:
    """A kernel's process, with what Jupyter asks of a subprocess.Popen."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int):
        self.pid = pid

    def poll(self) -> int | None:
        """None while it runs. How it ended, nobody asks."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended."""
        while self.poll() is None:
            time.sleep(0.01)
        return 0

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Server:
    """The process that kernels are forked from, begun with the first of them."""

    process = None

    def launch(self, command: list[str], *, cwd: str, env: dict[str, str], **_) -> Forked:
        """Fork a kernel: jupyter_client.launcher.launch_kernel, which starts a command."""
        module = command.index("-m")  # what is before it are the interpreter and its options
        if self.process is None:
            self.process = subprocess.Popen(
                [*command[:module], __file__], text=True, start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        asked = {"arguments": command[module + 2 :], "folder": cwd, "environment": env}
        print(json.dumps(asked), file=self.process.stdin, flush=True)
        return Forked(int(self.process.stdout.readline()))


@contextmanager
def forking() -> Iterator[None]:
    """Let Jupyter fork its kernels for a while."""
    if sys.platform != "linux":
        yield
        return
    from jupyter_client.provisioning import local_provisioner

    usual, local_provisioner.launch_kernel = local_provisioner.launch_kernel, Server().launch
    try:
        yield
    finally:
        local_provisioner.launch_kernel = usual


def pytest_configure(config):
    """Let it do so until the end."""
    kernels = forking()
    kernels.__enter__()
    config.add_cleanup(lambda: kernels.__exit__(None, None, None))


class Errors:
    """What modules keep as the standard error when they are imported: it leads to that of the kernel.

    While they are imported they have nothing to say: in a kernel it would be an output that no page has.
    """

    def write(self, text: str) -> int:
        if sys.stderr is self:
            raise SystemExit(f"said while the modules of the kernels are imported: {text}")
        return sys.stderr.write(text)

    def __getattr__(self, name: str):
        return getattr(sys.__stderr__ if sys.stderr is self else sys.stderr, name)


def serve() -> None:
    """Import, then fork a kernel for each line that comes, and answer with its number."""
    # What modules read when they are imported: a kernel sets the one, chapter 15 the other before it imports.
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    os.environ["TRITON_INTERPRET"] = "1"
    with redirect_stderr(Errors()):
        for name in IMPORTED:
            import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a kernel's end
    for line in sys.stdin:
        if os.fork() == 0:
            become_kernel(**json.loads(line))
            return


def become_kernel(arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """Be what `python -m ipykernel_launcher` is, in this folder and environment."""
    import ipykernel_launcher
    import numpy as np
    import torch
    from ipykernel import kernelapp

    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    print(os.getpid(), flush=True)  # only now: who asked may signal the whole group
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    torch.seed()  # as after an import; Python's own does so in every fork
    np.random.seed()  # noqa: NPY002  # what a cell forgot to seed differs in every kernel
    sys.argv = [ipykernel_launcher.__file__, *arguments]
    # It ends when this process's parent does.
    kernelapp.launch_new_instance(parent_handle=os.getppid())


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file
    serve()
