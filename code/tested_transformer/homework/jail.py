"""Run a student's function where it can do no harm, and take back nothing but arrays.

`run_in_jail` writes the cases to a folder of its own and starts `worker.py` on them in bubblewrap: no
network, no home, no file that can be written but one for each answer, no second process, no
environment. What the worker leaves is read as bytes from a stranger.
"""

from __future__ import annotations

import io
import json
import math
import os
import platform
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import complain, need_count, need_positive
from ..specs.judge import Case
from .worker import READY, TEXT

PACKAGE = Path(__file__).resolve().parents[1]
# What a jail lacks of this package: reference implementations, and their compiled copies.
SECRET = {"specs", "exercises", "homework", "reference.py", "__pycache__"}
FLAGS = {
    "ok", "raised", "memory", "not a tensor", "wrong type", "too large", "syntax error",
    "missing function",
}  # fmt: skip
START_SECONDS = 120  # for Python and torch to come up, which is no part of a student's time
UNTRUSTED = os.O_RDONLY  # and where the system has them: follow no link, wait for no pipe
for _name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"):
    UNTRUSTED |= getattr(os, _name, 0)
HEADER = 4096  # bytes of the line that says what happened
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
    """What one submission may take; all counts begin when Python and torch are up."""

    wall_seconds: float = 60.0
    cpu_seconds: int = 30
    memory_bytes: int = 2 << 30
    answer_bytes: int = 16 << 20
    scratch_bytes: int = 16 << 20
    open_files: int = 64
    output_bytes: int = 8 << 10

    def __post_init__(self) -> None:
        """Raises: TypeError or ValueError unless every limit is a positive number."""
        need_positive("wall_seconds", self.wall_seconds)
        for name, value in asdict(self).items():
            if name != "wall_seconds":
                need_count(name, value, HEADER if name == "answer_bytes" else 1)


@dataclass(frozen=True, eq=False)
class Answer:
    """What came of one case.

    flag: "ok", or why there is no value: "raised", "not a tensor", "wrong type", "too large",
    "memory", "syntax error", "missing function" (the worker's word), "timeout", "killed",
    "no answer", "symlink", "not an array" (what was found from outside). dtype: of the student's
    tensor. text: the exception, or other words of the student's process; it is theirs, not ours.
    """

    flag: str
    value: np.ndarray | None = None
    dtype: str = ""
    text: str = ""


def run_in_jail(
    source: str,
    function: str,
    cases: Sequence[Case],
    *,
    required: Sequence[str],
    limits: Limits | None = None,
    without_jail_for_my_own_code: bool = False,
) -> list[Answer]:
    """Execute the source in a jail, call the function on every case, and give an Answer for each.

    `required` names the arguments that go by place, as in a Spec. Nothing that the source does is
    raised. `without_jail_for_my_own_code=True` only limits the process: what runs can read, change
    and send away everything that its owner can. It is for code that you wrote yourself, and for Linux and macOS.

    Raises: JailMissing if this machine has no jail; JailError if the jail ends before the student's
        code begins; TypeError for an argument that can not be sent; ValueError if a case lacks a
        required one.
    """
    limits = limits or Limits()
    jailed = not without_jail_for_my_own_code
    bubblewrap = find_bubblewrap() if jailed else ""
    with tempfile.TemporaryDirectory(prefix="jail-") as folder:
        inputs, outputs = Path(folder, "inputs"), Path(folder, "outputs")
        write_inputs(inputs, source, function, cases, required, limits)
        outputs.mkdir()
        files = [outputs / str(number) for number in range(len(cases))]
        for file in files:
            file.touch()
        if jailed:
            with tempfile.TemporaryFile() as rules:
                rules.write(system_call_filter())
                rules.seek(0)
                command = jail_command(bubblewrap, inputs, files, limits, rules.fileno())
                ended = execute(command, limits, rules.fileno())
        else:
            ended = execute(bare_command(inputs, outputs), limits)
        answers = [read_answer(file, limits.answer_bytes) for file in files]
    return [answer or ended for answer in answers]


# -------------------------------------------------------------------------------------- what goes in


def write_inputs(
    inputs: Path,
    source: str,
    function: str,
    cases: Sequence[Case],
    required: Sequence[str],
    limits: Limits,
) -> None:
    """Write the source, the job and the cases for the worker.

    Raises: TypeError for an argument that is neither an array of numbers nor made of plain values;
        ValueError if a case lacks a required argument.
    """
    inputs.mkdir()
    (inputs / "source.py").write_text(source, encoding="utf-8", errors="replace")
    listed = []
    for number, case in enumerate(cases):
        arrays = {n: a for n, a in case.arguments.items() if isinstance(a, np.ndarray)}
        plain = {n: encode(n, a) for n, a in case.arguments.items() if n not in arrays}
        for name in required:
            if name not in case.arguments:
                raise complain(ValueError, "cases", f"one without `{name}`", "every required one")
        for name, array in arrays.items():
            if array.dtype.kind not in "biuf":
                raise complain(TypeError, name, array.dtype, "an array of numbers")
        np.savez(inputs / f"{number}.npz", **arrays)
        listed.append({"dtype": str(case.dtype).removeprefix("torch."), "plain": plain})
    job = {"function": function, "required": list(required), "cases": listed}
    job["limits"] = asdict(limits)
    (inputs / "job.json").write_text(json.dumps(job), encoding="utf-8")


def encode(name: str, value: Any) -> Any:
    """A plain argument as JSON can hold it.

    Raises: TypeError for anything but None, a bool, a number, a string, and lists and tuples of them.
    """
    if isinstance(value, tuple):
        return {"tuple": [encode(name, item) for item in value]}
    if isinstance(value, list):
        return [encode(name, item) for item in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise complain(TypeError, name, type(value).__name__, "an array or a plain value")


# ------------------------------------------------------------------------------------------ the jail


def find_bubblewrap() -> str:
    """The path of bubblewrap.

    Raises: JailMissing, with how to get it.
    """
    found = shutil.which("bwrap")
    if found and platform.machine() in SYSTEM_CALLS:
        return found
    raise JailMissing(
        "A student's code runs only in a jail, and this machine has none. On Debian and Ubuntu: "
        "apt install bubblewrap. On another Linux its package is called bubblewrap too. On macOS use "
        "a Linux container, on Windows WSL2. "
        f"The processor must be one of {', '.join(SYSTEM_CALLS)}; this one is {platform.machine()}."
    )


def module_folders() -> list[Path]:
    """The folders that torch and NumPy, and so all that a notebook may import, are installed in."""
    return sorted({Path(module.__file__).resolve().parents[1] for module in (torch, np)})


def jail_command(
    bubblewrap: str, inputs: Path, files: Sequence[Path], limits: Limits, rules: int
) -> list[str]:
    """The command that starts the worker in bubblewrap.

    The answers' files are there from the start, each mounted for itself: no other can be made, and
    none can be replaced by a link.
    """
    python = f"/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    command = [bubblewrap, "--unshare-all", "--new-session", "--die-with-parent", "--clearenv"]
    for name, value in {**ENVIRONMENT, "LD_LIBRARY_PATH": "/python/lib"}.items():
        command += ["--setenv", name, value]
    command += system_mounts()
    command += ["--ro-bind", os.path.realpath(sys.base_prefix), "/python"]
    targets = ["/package"]
    for number, folder in enumerate(module_folders()):
        targets.append(f"/modules/{number}")
        command += ["--ro-bind", str(folder), targets[-1]]
        if (folder / PACKAGE.name).exists():  # installed there, with its solutions
            command += ["--tmpfs", f"{targets[-1]}/{PACKAGE.name}"]
            command += ["--remount-ro", f"{targets[-1]}/{PACKAGE.name}"]
    for entry in sorted(PACKAGE.iterdir()):
        if entry.name not in SECRET:
            command += ["--ro-bind", str(entry), f"/package/{PACKAGE.name}/{entry.name}"]
    command += ["--ro-bind", str(PACKAGE / "homework" / "worker.py"), "/jail/worker.py"]
    command += ["--ro-bind", str(inputs), "/jail/inputs"]
    for file in files:
        command += ["--bind", str(file), f"/jail/outputs/{file.name}"]
    command += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    command += ["--size", str(limits.scratch_bytes), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    command += ["--remount-ro", "/", "--seccomp", str(rules), "--"]
    command += [python, "-I", "-S", "-B", "-X", "utf8", "/jail/worker.py"]
    return [*command, "/jail/inputs", "/jail/outputs", *targets]


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


# Numbers of system calls: the architecture's mark, clone, and what is refused. clone3 is 435 everywhere.
# fork, vfork; ptrace, mount, unshare, setns; shmget, msgget, semget (memory that no limit counts);
# add_key, request_key, keyctl, perf_event_open, bpf, userfaultfd, io_uring_setup (nothing needs them).
SYSTEM_CALLS = {
    "x86_64": (
        0xC000003E, 56,
        (57, 58, 101, 165, 272, 308, 29, 68, 64, 248, 249, 250, 298, 321, 323, 425),
    ),
    "aarch64": (
        0xC00000B7, 220,
        (117, 40, 97, 268, 194, 186, 190, 217, 218, 219, 241, 280, 282, 425),
    ),
}  # fmt: skip


def system_call_filter() -> bytes:
    """The rules (classic BPF) by which the kernel refuses system calls in the jail.

    A thread may start, a process may not: one process is all there is to count and to kill. A limit
    on processes would do nothing when root marks, and would count a user's other programs.
    """
    mark, clone, refused = SYSTEM_CALLS[platform.machine()]
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, kill, no = 0x7FFF0000, 0x80000000, 0x50000
    rules = [(load, 0, 0, 4), (equal, 1, 0, mark), (give, 0, 0, kill), (load, 0, 0, 0)]
    rules += [(at_least, 0, 1, 0x40000000), (give, 0, 0, no | 1)]  # x86's second set of numbers
    for call in refused:
        rules += [(equal, 0, 1, call), (give, 0, 0, no | 1)]  # EPERM
    rules += [(equal, 0, 1, 435), (give, 0, 0, no | 38)]  # ENOSYS: the C library then tries clone
    rules += [(equal, 0, 3, clone), (load, 0, 0, 16), (any_bit, 1, 0, 0x10000)]  # CLONE_THREAD
    rules += [(give, 0, 0, no | 1), (give, 0, 0, allow)]
    return b"".join(struct.pack("HBBI", *rule) for rule in rules)


def bare_command(inputs: Path, outputs: Path) -> list[str]:
    """The command that starts the worker without a jail."""
    worker = PACKAGE / "homework" / "worker.py"
    folders = [PACKAGE.parent, *module_folders()]
    return [sys.executable, "-I", "-B", "-X", "utf8",
            *map(str, [worker, inputs, outputs, *folders])]  # fmt: skip


def execute(command: Sequence[str], limits: Limits, rules: int | None = None) -> Answer:
    """Run the worker to its end or to the limit of time; give what is true of the unanswered cases.

    Raises: JailError if it ended before the student's code began.
    """
    process = subprocess.Popen(
        command, env=ENVIRONMENT, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True, pass_fds=() if rules is None else (rules,),
    )  # fmt: skip
    output, up = bytearray(), threading.Event()
    reader = threading.Thread(
        target=_drain, args=(process.stdout, output, limits.output_bytes, up), daemon=True
    )
    reader.start()
    late = False
    try:
        up.wait(START_SECONDS)
        process.wait(limits.wall_seconds)
    except subprocess.TimeoutExpired:
        late = True
    finally:  # whatever happened, nothing of it may live on
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join(2)
    text = bytes(output).decode(errors="replace")
    if not text.startswith(READY):
        raise JailError(f"the jail did not come up (status {process.returncode}): {text[-TEXT:]}")
    return _ending(process.returncode, late, text.removeprefix(READY))


def _drain(pipe: Any, kept: bytearray, most: int, up: threading.Event) -> None:
    """Read a pipe to its end, and keep the beginning: a writer must neither wait nor fill memory."""
    while chunk := os.read(pipe.fileno(), 1 << 16):
        kept += chunk[: max(0, most - len(kept))]
        up.set()  # the worker says one word when it is up, and nothing before
    pipe.close()
    up.set()


def _ending(status: int, late: bool, output: str) -> Answer:
    """The Answer of a case that the worker did not come to."""
    number = -status if status < 0 else status - 128  # bubblewrap passes a signal on as 128 + it
    if late or number == signal.SIGXCPU:
        return Answer("timeout", text=output)
    if number > 0:
        return Answer("killed", text=f"signal {number}\n{output}")
    return Answer("no answer", text=f"ended with status {status}\n{output}")


# ------------------------------------------------------------------------------------ what comes out


def read_answer(path: Path, most: int) -> Answer | None:
    """Read one answer as a stranger's: a regular file, no link, no larger than agreed, no pickle.

    None if the file is empty: the worker did not come to it.
    """
    try:
        with open(path, "rb", opener=lambda name, _: os.open(name, UNTRUSTED)) as stream:
            about = os.fstat(stream.fileno())
            if not stat.S_ISREG(about.st_mode):
                return Answer("not an array", text="not a file")
            if about.st_size > most:
                return Answer("too large", text=f"{about.st_size} bytes")
            content = stream.read(most)
    except FileNotFoundError:
        return Answer("no answer", text="the file is gone")
    except OSError:  # a link is not followed; a folder and a socket can not be opened
        return Answer("symlink" if path.is_symlink() else "not an array", text="not a file")
    return parse_answer(content) if content else None


def parse_answer(content: bytes) -> Answer:
    """An Answer from a line of JSON and, if the flag is "ok", an array in NumPy's format."""
    line, _, array = content.partition(b"\n")
    try:
        said = json.loads(line[:HEADER])
        flag, text = said["flag"], said["text"]
        if flag not in FLAGS or not isinstance(text, str):
            raise ValueError("no such flag")
    except (ValueError, TypeError, LookupError, RecursionError):
        return Answer("not an array", text="no status")
    text = "".join(c if c.isprintable() else " " for c in text[:TEXT])
    if flag != "ok":
        return Answer(flag, text=text)
    try:
        return Answer("ok", load_array(array), dtype=text)
    except (
        ValueError,
        TypeError,
        OverflowError,
        MemoryError,
        RecursionError,
        SyntaxError,
    ) as error:
        return Answer("not an array", text=f"{type(error).__name__}: {error}"[:TEXT])


def load_array(content: bytes) -> np.ndarray:
    """An array of numbers from NumPy's format, after its header was found to tell the size truly.

    Raises: ValueError if it is anything else.
    """
    stream = io.BytesIO(content)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("not version 1.0 of the format")
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.kind not in "biufc":
        raise ValueError(f"no array of numbers, but {dtype}")
    if (
        any(n < 0 for n in shape)
        or math.prod(shape) * dtype.itemsize != len(content) - stream.tell()
    ):
        raise ValueError(f"the header promises shape {shape} and the file holds something else")
    stream.seek(0)
    return np.load(stream, allow_pickle=False)
