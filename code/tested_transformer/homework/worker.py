"""Runs inside the jail: execute a student's definitions, call one function on every case, write answers.

Usage: python worker.py INPUTS OUTPUTS FOLDER...

INPUTS holds `source.py`, `job.json` and one `NUMBER.npz` for each case. OUTPUTS gets one file for each
case: a line of JSON that says what happened, and after it, if the call answered, the answer as .npy.
The FOLDERs are where modules are imported from. The script imports nothing else of this package.

Once the student's code runs, nothing that this process says can be trusted: the student shares it.
Whoever reads the answers must take them for bytes from a stranger.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

READY = "ready\n"  # printed before the student's first line runs, so that no student can forge it
TEXT = 500  # characters of an exception's message
NO_MEMORY = ("DefaultCPUAllocator", "not enough memory", "std::bad_alloc")
# What a notebook imports from this package but the jail lacks: it holds the solutions.
HIDDEN = {
    "exercises": ("check", "EXERCISES"),
    "specs": ("judge", "pitfall"),
    "specs.judge": ("judge",),
}


def decode(value: Any) -> Any:
    """A plain argument as it was before `jail.encode`: JSON has no tuples."""
    if isinstance(value, dict):
        return tuple(map(decode, value["tuple"]))
    return [decode(item) for item in value] if isinstance(value, list) else value


def set_limits(limits: dict[str, int]) -> None:
    """Limit this process, on top of what it took so far: torch alone takes a lot.

    A limit, once set, can not be raised again. macOS, where there is no jail either, has none.
    """
    if sys.platform != "linux":
        return
    import resource

    with open("/proc/self/statm") as sizes:
        now = int(sizes.read().split()[0]) * resource.getpagesize()
    seconds = int(time.process_time()) + 1 + limits["cpu_seconds"]
    for kind, most in {
        resource.RLIMIT_AS: now + limits["memory_bytes"],
        resource.RLIMIT_FSIZE: limits["answer_bytes"],
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_CORE: 0,
    }.items():
        resource.setrlimit(kind, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


def hide_solutions() -> None:
    """Put modules that do nothing where the package keeps its solutions."""
    for name, things in HIDDEN.items():
        module = ModuleType(f"tested_transformer.{name}")
        module.__path__ = []  # a package: it may be asked for a module inside
        for thing in things:
            setattr(module, thing, lambda *arguments, **named: None)
        sys.modules[module.__name__] = module


def describe(error: BaseException) -> tuple[str, str]:
    """Name what was raised: its flag, and its type and message."""
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:  # the student wrote the exception, and its __str__ too
        text = type(error).__name__
    out_of_memory = isinstance(error, MemoryError) or any(sign in text for sign in NO_MEMORY)
    return "memory" if out_of_memory else "raised", text[:TEXT]


class Worker:
    """One submission at work on its cases."""

    def __init__(self, inputs: Path, outputs: Path) -> None:
        """Read the job, and keep what is needed of torch and NumPy while they are what they seem."""
        import numpy
        import torch

        self.numpy, self.torch = numpy, torch
        self.inputs, self.outputs = inputs, outputs
        self.source = (inputs / "source.py").read_text(encoding="utf-8")
        self.job = json.loads((inputs / "job.json").read_text(encoding="utf-8"))

    def run(self) -> None:
        """Execute the definitions, then answer every case."""
        function = self.define()
        if function is None:
            return
        for number in range(len(self.job["cases"])):
            try:
                answer = self.call(function, number)
            except BaseException as error:  # also SystemExit, which would end the other cases
                self.write(number, *describe(error))
                continue
            self.keep(number, answer)

    def define(self) -> Any:
        """Execute the student's source and give the function; None, and every case says why, if not."""
        module = ModuleType("submission")
        sys.modules["submission"] = module
        try:
            exec(compile(self.source, "submission.py", "exec"), module.__dict__)
        except SyntaxError as error:
            return self.write_all("syntax error", describe(error)[1])
        except BaseException as error:
            return self.write_all(*describe(error))
        function = vars(module).get(self.job["function"])
        if not callable(function):
            return self.write_all("missing function", f"no function `{self.job['function']}`")
        return function

    def call(self, function: Any, number: int) -> Any:
        """Call the function as the judge does: required arguments by place, the others by name."""
        case = self.job["cases"][number]
        given = {name: decode(value) for name, value in case["plain"].items()}
        with self.numpy.load(self.inputs / f"{number}.npz", allow_pickle=False) as arrays:
            for name in arrays.files:
                tensor = self.torch.from_numpy(arrays[name])
                floats = tensor.is_floating_point()
                given[name] = tensor.to(getattr(self.torch, case["dtype"])) if floats else tensor
        placed = [given.pop(name) for name in self.job["required"]]
        self.torch.default_generator.manual_seed(0)
        return function(*placed, **{n: a for n, a in given.items() if a is not None})

    def keep(self, number: int, answer: Any) -> None:
        """Write an answer if it is a tensor, an array or a number, and not too large."""
        torch, numpy = self.torch, self.numpy
        try:
            if isinstance(answer, (bool, int, float, numpy.ndarray, numpy.generic)):
                answer = numpy.asarray(answer)
            elif not isinstance(answer, torch.Tensor):
                return self.write(number, "not a tensor", f"a {type(answer).__name__}")
            dtype, size = str(answer.dtype), answer.nbytes
            if size > self.job["limits"]["answer_bytes"] - 4096:  # less what stands before it
                return self.write(number, "too large", f"{size} bytes")
            if isinstance(answer, torch.Tensor):
                answer = answer.detach().cpu()
                answer = (answer.float() if dtype == "torch.bfloat16" else answer).numpy()
            if answer.dtype.kind not in "biufc":
                return self.write(number, "wrong type", dtype)
            self.write(number, "ok", dtype, answer)
        except BaseException as error:  # a sparse tensor, a subclass that lies, no memory
            flag, text = describe(error)
            self.write(number, "wrong type" if flag == "raised" else flag, text)

    def write_all(self, flag: str, text: str) -> None:
        """Say the same of every case."""
        for number in range(len(self.job["cases"])):
            self.write(number, flag, text)

    def write(self, number: int, flag: str, text: str, answer: Any = None) -> None:
        """Write what happened with one case, and its answer if there is one."""
        with open(self.outputs / str(number), "wb") as file:
            file.write(json.dumps({"flag": flag, "text": text}).encode() + b"\n")
            if answer is not None:
                self.numpy.lib.format.write_array(file, answer, version=(1, 0), allow_pickle=False)


def main() -> None:
    """Prepare everything, say so, and only then let the student's code run."""
    inputs, outputs, *folders = map(Path, sys.argv[1:])
    sys.path[:0] = map(str, folders)
    worker = Worker(inputs, outputs)
    hide_solutions()
    set_limits(worker.job["limits"])
    sys.stdout.write(READY)
    sys.stdout.flush()
    worker.run()


if __name__ == "__main__":
    try:
        main()
    except BaseException as failure:
        print(*describe(failure))
        status = 1
    else:
        status = 0
    try:
        sys.stdout.flush()
    finally:
        os._exit(status)  # no thread and no exit handler of the student's holds the end back
