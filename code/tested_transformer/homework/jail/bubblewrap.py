"""A jail for a student's code: bubblewrap, and rules for the system calls that it refuses.

No network, no home, nothing of this package, no file that can be written but a small /tmp that vanishes,
no second process, no environment. What comes out is what the worker writes to its standard output, and
`session.py` reads that as bytes from a stranger.
"""

from __future__ import annotations

import os
import platform
import shutil
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ...bounds import PositiveFloat, PositiveInt
from ...shapes import check_fields

__all__ = ["JailMissing", "Limits"]

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1]
SURROUNDINGS = PACKAGE / "specs" / "surroundings.py"
WORKER = (HERE / "worker.py", HERE / "wire.py", SURROUNDINGS)  # all that a jail has of this package
ENVIRONMENT = {
    "HOME": "/tmp", "LANG": "C.UTF-8", "MPLBACKEND": "agg", "MPLCONFIGDIR": "/tmp",
    "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin",
}  # fmt: skip


class JailError(RuntimeError):
    """The jail did not come up: nothing can be said about the submission."""


class JailMissing(JailError):
    """This machine has no jail."""


@dataclass(frozen=True)
class Limits:
    """What one task of a submission may take; all counts begin when Python and torch are up.

    wall_seconds: of waiting for answers, less what a busy machine gave to other programs; and, of a hunt, of
    the implementations that its test calls. cpu_seconds: of the student's process. memory_bytes: on top
    of what torch takes. answer_bytes: of one answer. scratch_bytes: in /tmp, where a bug hunt's test
    may write nothing. output_bytes: of what is printed, the rest is dropped.
    """

    wall_seconds: PositiveFloat = 60.0
    cpu_seconds: PositiveInt = 30
    memory_bytes: PositiveInt = 2 << 30
    answer_bytes: PositiveInt = 1 << 24
    scratch_bytes: PositiveInt = 1 << 24
    open_files: PositiveInt = 64
    output_bytes: PositiveInt = 8 << 10

    def __post_init__(self) -> None:
        """Raises: TypeError or ValueError unless every limit is a positive number."""
        check_fields(self)


def find_bubblewrap() -> str:
    """The path of bubblewrap.

    Raises: JailMissing, with how to get it.
    """
    path = shutil.which("bwrap")
    if path and platform.machine() in SYSTEM_CALLS:
        return path
    raise JailMissing(
        "A student's code runs only in a jail, and this machine has none. On Debian and Ubuntu: "
        "apt install bubblewrap. On another Linux its package is called bubblewrap too. On macOS use "
        "a Linux container, on Windows WSL2. "
        f"The processor must be one of {', '.join(SYSTEM_CALLS)}; this one is {platform.machine()}."
    )


def module_folders() -> list[Path]:
    """The folders that torch and NumPy, and so all that a notebook may import, are installed in."""
    return sorted({Path(module.__file__).resolve().parents[1] for module in (torch, np)})


def jail_command(bubblewrap: str, limits: Limits, rules: int, *, forks: bool = False) -> list[str]:
    """The command that starts the worker in bubblewrap.

    A worker that forks, for students' processes that must not hear of each other, has no file to write.
    """
    python = f"/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    command = [bubblewrap, "--unshare-all", "--new-session", "--die-with-parent", "--clearenv"]
    for name, value in {**ENVIRONMENT, "LD_LIBRARY_PATH": "/python/lib"}.items():
        command += ["--setenv", name, value]
    command += system_mounts()
    modules = {f"/modules/{number}": path for number, path in enumerate(module_folders())}
    folders = {"/python": Path(sys.base_prefix).resolve(), **modules}
    for target, folder in folders.items():
        command += ["--ro-bind", str(folder), target]
    for hidden in hidden_packages({"/usr": Path("/usr"), **folders}):
        command += ["--tmpfs", hidden, "--remount-ro", hidden]
    for path in WORKER:
        command += ["--ro-bind", str(path), f"/jail/{path.name}"]
    # Root, if root marks, could unmount what hides the package, and set the host's kernel by /proc/sys.
    command += ["--cap-drop", "ALL", "--proc", "/proc", "--remount-ro", "/proc"]
    command += ["--dev", "/dev", "--remount-ro", "/dev"]
    command += ["--size", str(limits.scratch_bytes), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    command += ["--remount-ro", "/tmp"] if forks else []
    command += ["--remount-ro", "/", "--seccomp", str(rules), "--"]
    return [
        *command,
        python,
        "-I",
        "-S",
        "-B",
        "-X",
        "utf8",
        f"/jail/{WORKER[0].name}",
        "/jail",
        *modules,
    ]


def hidden_packages(folders: dict[str, Path]) -> list[str]:
    """Where a jail would show this package, with its solutions, in the folders that it has."""
    installed = [folder / PACKAGE.name for folder in module_folders()]
    packages = [PACKAGE, *(path for path in installed if path.exists())]
    return sorted({
        f"{target}/{package.relative_to(folder).as_posix()}"
        for target, folder in folders.items() for package in packages if package.is_relative_to(folder)
    })  # fmt: skip


def system_mounts() -> list[str]:
    """What programs need of the system: its libraries, and where they are looked up."""
    mounts = ["--ro-bind", "/usr", "/usr"]
    for name in ("lib", "lib32", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            mounts += ["--symlink", os.readlink(path), str(path)]
        elif path.exists():
            mounts += ["--ro-bind", str(path), str(path)]
    for name in ("/etc/ld.so.cache", "/etc/alternatives"):
        mounts += ["--ro-bind-try", name, name]
    return mounts


# Numbers of system calls: the architecture's mark, clone, prlimit64, and what is refused. clone3 is 435
# everywhere. fork, vfork; ptrace, mount, unshare, setns; shmget, msgget, semget (memory that no limit
# counts); add_key, request_key, keyctl, perf_event_open, bpf, userfaultfd, io_uring_setup (nothing needs
# them); mq_open, setpriority, ioprio_set, sched_setparam, sched_setscheduler, sched_setaffinity,
# sched_setattr (they leave something behind for the next process, or change another).
SYSTEM_CALLS = {
    "x86_64": (
        0xC000003E, 56, 302,
        (57, 58, 101, 165, 272, 308, 29, 68, 64, 248, 249, 250, 298, 321, 323, 425,
         240, 141, 251, 142, 144, 203, 314),
    ),
    "aarch64": (
        0xC00000B7, 220, 261,
        (117, 40, 97, 268, 194, 186, 190, 217, 218, 219, 241, 280, 282, 425,
         180, 140, 30, 118, 119, 122, 274),
    ),
}  # fmt: skip


def system_call_filter(*, forks: bool = False) -> bytes:
    """The rules (classic BPF) by which the kernel refuses system calls in the jail.

    A thread may start, a process may not: one process is all there is to count and to kill. A limit
    on processes would do nothing when root marks, and would count a user's other programs. Only a
    worker that `forks` may start others, before any of the student's code runs; they get all the rules.
    """
    mark, clone, prlimit, refused = SYSTEM_CALLS[platform.machine()]
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, kill, no = 0x7FFF0000, 0x80000000, 0x50000
    rules = [(load, 0, 0, 4), (equal, 1, 0, mark), (give, 0, 0, kill), (load, 0, 0, 0)]
    rules += [(at_least, 0, 1, 0x40000000), (give, 0, 0, no | 1)]  # x86's second set of numbers
    for call in refused:
        rules += [(equal, 0, 1, call), (give, 0, 0, no | 1)]  # EPERM
    rules += [(equal, 0, 1, 435), (give, 0, 0, no | 38)]  # ENOSYS: the C library then tries clone
    rules += [(equal, 0, 3, prlimit), (load, 0, 0, 16), (equal, 1, 0, 0)]  # its own limits alone
    rules += [(give, 0, 0, no | 1), (load, 0, 0, 0)]
    if not forks:
        rules += [(equal, 0, 3, clone), (load, 0, 0, 16), (any_bit, 1, 0, 0x10000)]  # CLONE_THREAD
        rules += [(give, 0, 0, no | 1)]
    rules += [(give, 0, 0, allow)]
    return b"".join(struct.pack("HBBI", *rule) for rule in rules)


def bare_command() -> list[str]:
    """The command that starts the worker without a jail."""
    return [sys.executable, "-I", "-B", "-X", "utf8", str(WORKER[0]),
            str(SURROUNDINGS.parent), *map(str, module_folders())]  # fmt: skip
