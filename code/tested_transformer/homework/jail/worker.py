"""Runs inside the jail: load a student's definitions, and call their functions when the grader asks.

Usage: python worker.py SURROUNDINGS FOLDER...

The FOLDERs are where modules are imported from; SURROUNDINGS has surroundings.py. Frames (wire.py) come by
standard input and go by what was standard output. If standard input is a socket, it brings connections
instead, and the frames of each are served by a process of its own, in which nothing has run before: `forked`.
Of this package only these two files are there; the rest of it is a stand-in (`Absent`).

    from the grader                                   from here
                                                      ["ready"]                    once, and before
                                                                                   the student's code
    ["load", source, forbidden, limits]               ["loaded"]
    ["renew"]                                         ["loaded"]                   the definitions, anew
    ["call", function, arguments, named]              ["answer", value, arguments after it, settings]
    ["gradients", function, arguments, named,         ["answer", gradients, {}, []]
     names of arguments, gradient of the answer]      (settings: those of torch that were set)
    in place of an answer                             ["raised", type, text], ["unfit", flag, text]
    ["answer", value, changed], ["raised", type]      ["ask", n, arguments, named]: implementation n
                                                      that the grader serves to a bug hunt's test

Once the student's code runs, nothing that this process says can be trusted: the student shares it.
Whoever reads the answers must take them for bytes from a stranger.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib
import importlib.abc
import importlib.machinery
import linecache
import os
import signal
import socket
import stat
import sys
import time
import traceback
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

TEXT = 500  # characters of an exception's message
NO_GRADIENT = (
    "the answer: expected one that depends on the arguments, so that gradients reach them, "
    "got one without a gradient"
)
NO_MEMORY = ("DefaultCPUAllocator", "not enough memory", "std::bad_alloc")
PACKAGE = "tested_transformer"
CONSTANTS = {"PAD": 0, "BOS": 1, "EOS": 2, "UNK": 3}  # of the package, which functions may use
SHORT = {"F": "torch.nn.functional", "nn": "torch.nn", "np": "numpy"}
# What the operators below a forbidden function are called, whichever door leads to them, and functions
# whose code nobody sees run: a compiler's.
OPERATORS = {
    "F.scaled_dot_product_attention": "scaled_dot_product",
    "F.multi_head_attention_forward": "multi_head_attention",
    "nn.MultiheadAttention": "multi_head_attention",
    "nn.TransformerDecoderLayer": "transformer_",
}
UNSEEN = ("torch.jit.script", "torch.jit.trace", "torch.jit.CompilationUnit",
          "torch._C.DisableTorchFunction")  # fmt: skip
PR_SET_DUMPABLE, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 4, 22, 2  # of Linux: man prctl


class Forbidden(RuntimeError):
    """A library function that the task forbids was called."""


# ---------------------------------------------------------------------------- what the jail lacks


class AbsentFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for the book's package: it can be imported, and nothing of it can be called."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Every module of the package, whatever its name."""
        if name.partition(".")[0] != PACKAGE:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        """A module that has whatever is asked of it."""
        return AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to execute."""


class AbsentModule(ModuleType):
    """A module of the package that is not there."""

    def __getattr__(self, name: str) -> Any:
        """A class that can be named and inherited from, and not called."""
        if name.startswith("__"):
            raise AttributeError(name)
        if name in CONSTANTS:
            return CONSTANTS[name]
        return type(name, (Absent,), {"path": f"{self.__name__}.{name}"})


class Absent:
    """Something of the package: homework that is marked stands on its own."""

    path = PACKAGE

    def __new__(cls, *arguments: Any, **named: Any) -> Any:
        """Not here."""
        raise RuntimeError(f"{cls.path} is not there when homework is marked: write your own")


def forbid(names: list[str]) -> None:
    """Put functions that raise where forbidden ones were, under the names that people use."""
    import torch

    unseen = UNSEEN if any(name in OPERATORS for name in names) else ()
    for name in (*names, *unseen):
        first, _, rest = name.partition(".")
        path = f"{SHORT.get(first, first)}.{rest}"
        module, _, attribute = path.rpartition(".")
        guard = _guard(name)
        for owner in (importlib.import_module(module), torch, torch._C._nn, torch.ops.aten):
            if hasattr(owner, attribute):
                setattr(owner, attribute, guard)


def watched(names: list[str], mode: Any) -> Any:
    """A context in which no operator of a forbidden function can be called by any of its names.

    `mode` is torch's TorchFunctionMode, through which every call of torch goes that Python makes.
    """
    words = {OPERATORS[name]: name for name in names if name in OPERATORS}

    class Watch(mode):
        def __torch_function__(
            self, function: Any, types: Any, arguments: Any = (), named: Any = None
        ) -> Any:
            called = getattr(function, "__name__", "")
            for word, name in words.items():
                if word in called:
                    raise Forbidden(f"{name} is not allowed in this task, nor is {called}")
            return function(*arguments, **(named or {}))

    return Watch if words else nullcontext


def _guard(name: str) -> Any:
    def guard(*arguments: Any, **named: Any) -> Any:
        raise Forbidden(f"{name} is not allowed in this task")

    return guard


def set_limits(limits: dict[str, int]) -> None:
    """Limit this process, on top of what it took so far: torch alone takes a lot.

    A limit, once set, cannot be raised again. macOS and Windows, where there is no jail either, have none.
    """
    if sys.platform != "linux":
        return
    import resource

    with open("/proc/self/statm") as sizes:
        now = int(sizes.read().split()[0]) * resource.getpagesize()
    seconds = int(time.process_time()) + 1 + limits["cpu_seconds"]
    for kind, most in {
        resource.RLIMIT_AS: now + limits["memory_bytes"],
        resource.RLIMIT_FSIZE: limits["scratch_bytes"],
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_CORE: 0,
    }.items():
        resource.setrlimit(kind, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


# ------------------------------------------------------------------------------------- at work


def describe(error: BaseException) -> list[str]:
    """What was raised, for the grader."""
    try:
        text = str(error)
    except BaseException:  # the student wrote the exception, and its __str__ too
        text = ""
    kind = type(error).__name__
    if isinstance(error, AssertionError) and not text:  # say which one
        text = f"at `{traceback.extract_tb(error.__traceback__)[-1].line}`"
    if isinstance(error, MemoryError) or any(sign in text for sign in NO_MEMORY):
        kind = "MemoryError"
    return ["raised", kind[:100], text[:TEXT]]


class Served:
    """An implementation that the grader keeps: a call sends the arguments and waits for the answer."""

    def __init__(self, worker: Worker, number: int) -> None:
        self._worker, self._number = worker, number

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Ask the grader."""
        reply = self._worker.ask(["ask", self._number, list(arguments), named])
        if reply[0] == "answer":
            given = self._worker.tensors(list(arguments), named)
            for name, value in reply[2].items():  # the implementation changed what it was given
                given[name].data = value
            return reply[1]
        raise getattr(builtins, reply[1])("the implementation on trial raised this")


class Worker:
    """One student's definitions at work."""

    def __init__(
        self, requests: BinaryIO, replies: BinaryIO, wire: Any, torch: Any, kept: Any
    ) -> None:
        """Keep what is needed of torch while it is what it seems."""
        self.requests, self.replies, self.wire, self.torch = requests, replies, wire, torch
        self.kept, self.numpy = kept, sys.modules["numpy"]
        self.grad = torch.autograd.grad  # a task may forbid it
        self.mode = torch.overrides.TorchFunctionMode
        self.watched: Any = nullcontext
        # The first gradient of a process imports modules: before the student's time begins.
        one = torch.ones((), requires_grad=True)
        self.grad(one * one, one)

    def ask(self, message: list) -> Any:
        """Send a frame and wait for the next."""
        return self.talk(self.wire.pack(message))

    def talk(self, frame: bytes) -> Any:
        """The same for a frame that is packed."""
        self.replies.write(frame)
        self.replies.flush()
        return self.wire.read(self.requests)

    def packed(self, reply: list) -> bytes:
        """The reply as a frame, or why it cannot be one."""
        try:
            return self.wire.pack(reply)
        except self.wire.TooLarge as error:
            reply = ["unfit", "too large", str(error)[:TEXT]]
        except self.wire.NotSendable as error:
            reply = ["unfit", "not a tensor", str(error)[:TEXT]]
        except BaseException as error:  # a tensor of the student's own class
            reply = ["unfit", "not a tensor", f"what raises {type(error).__name__} if it is read"]
        return self.wire.pack(reply)

    def run(self) -> None:
        """Serve requests until there are no more."""
        request = self.ask(["ready"])
        while True:
            try:
                reply = getattr(self, request[0])(*request[1:])
            except BaseException as error:  # also SystemExit, which would end the other calls
                reply = describe(error)
            try:
                request = self.talk(self.packed(reply))
            except EOFError:
                return

    def load(self, text: Any, forbidden: list[str], limits: dict[str, int]) -> list:
        """Execute the definitions, which come as an array of bytes, under the limits."""
        source = text.tobytes().decode()
        forbid(forbidden)
        self.watched = watched(forbidden, self.mode)
        set_limits(limits)
        name = "submission.py"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        self.code = compile(source, name, "exec")
        return self.renew()

    def renew(self) -> list:
        """Execute the definitions in a module that has seen no call."""
        sys.modules["submission"] = self.module = ModuleType("submission")
        exec(self.code, self.module.__dict__)
        return ["loaded"]

    def call(self, function: str, arguments: list, named: dict) -> list:
        """Call a function; return its arguments too, which the grader compares with those it sent."""
        given = [self.served(a) for a in arguments]
        with self.kept() as settings, self.watched():
            answer = self.invoke(function, given, named)
        return ["answer", self.plain(answer), self.tensors(given, named), settings]

    def gradients(
        self, function: str, arguments: list, named: dict, names: list, gradient: Any
    ) -> list:
        """The gradients by the named arguments, given that by the answer."""
        wanted = [self.tensors(arguments, named)[name].requires_grad_() for name in names]
        with self.kept(), self.watched():
            answer = self.invoke(function, arguments, named)
        if not isinstance(answer, self.torch.Tensor) or not answer.requires_grad:
            raise TypeError(NO_GRADIENT)
        if answer.shape != gradient.shape:
            raise RuntimeError("the answer has another shape each time")
        # The gradient of a number: given one for the answer, torch would import 500 modules.
        gradients = self.grad((answer * gradient).sum(), wanted, allow_unused=True)
        return ["answer", list(gradients), {}, []]

    def invoke(self, function: str, arguments: list, named: dict) -> Any:
        """The call itself. Raises: NameError if there is no such function."""
        if not callable(defined := vars(self.module).get(function)):
            raise NameError(f"no function `{function}`")
        return defined(*arguments, **named)

    def served(self, argument: Any) -> Any:
        """An argument; {"implementation": n} is what the grader serves."""
        if isinstance(argument, dict) and "implementation" in argument:
            return Served(self, argument["implementation"])
        return argument

    def tensors(self, arguments: list, named: dict) -> dict[str, Any]:
        """All arguments that are tensors, by position or name."""
        every = {**{str(i): a for i, a in enumerate(arguments)}, **named}
        return {name: a for name, a in every.items() if isinstance(a, self.torch.Tensor)}

    def plain(self, answer: Any) -> Any:
        """An answer as the wire takes it: of a subclass what it holds, of any strides, `...` as None."""
        if answer is ...:
            return None
        if isinstance(answer, (self.numpy.ndarray, self.numpy.generic)):
            return self.of_numpy(answer)
        for kind in (list, tuple):
            if isinstance(answer, kind):
                return kind(self.plain(item) for item in kind.__iter__(answer))
        if isinstance(answer, dict):
            return {key: self.plain(item) for key, item in dict.items(answer)}
        for kind, value in ((int, int.__int__), (float, float.__float__), (str, str.__str__)):
            if isinstance(answer, kind) and type(answer) not in (bool, kind):
                return value(answer)
        return answer

    def of_numpy(self, answer: Any) -> Any:
        """An array or a number of NumPy's, in this machine's byte order and in no dtype wider than 64 bits."""
        array = self.numpy.array(answer, order="C", subok=False)
        if array.dtype.kind not in "biufc":
            return array  # of objects, of text: the wire says that it takes none
        wide = {"f": "float64", "c": "complex128"}.get(array.dtype.kind)
        if wide and array.dtype.itemsize > self.numpy.dtype(wide).itemsize:
            array = array.astype(wide)
        return array.astype(array.dtype.newbyteorder("="), copy=False)


# ------------------------------------------------------------------- a process for every connection


def forked(control: socket.socket) -> socket.socket:
    """Return with every connection that comes by `control`, each time in a process of its own.

    With a connection come the rules by which the kernel refuses system calls to the new process; the one
    before is ended. This process runs nothing of the student's, and theirs can neither read nor change its
    memory: what they know of each other is what the kernel counts. If the grader hangs up, it ends as the
    last of them did.
    """
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    child, status = 0, 0
    while True:
        rules, connections, *_ = socket.recv_fds(control, 1 << 12, 1)
        if child:
            if rules:
                os.kill(child, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if not rules:
            os._exit(status if status >= 0 else 128 - status)
        child = os.fork()
        if child == 0:
            control.close()
            for printed in (1, 2):  # by a pipe it could be read again
                os.dup2(0, printed)
            refuse(rules)
            return socket.socket(fileno=connections[0])
        os.close(connections[0])


def refuse(rules: bytes) -> None:
    """Let the kernel refuse system calls to this process. Raises: OSError if it does not take the rules."""

    class Program(ctypes.Structure):
        _fields_ = (("count", ctypes.c_ushort), ("rules", ctypes.c_char_p))

    program = Program(len(rules) // 8, rules)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel takes no rules")


def main() -> None:
    """Prepare everything, say so, and only then let the student's code run."""
    own, sys.path[:0] = [str(Path(__file__).parent), sys.argv[1]], sys.argv[2:]
    sys.path[:0] = own
    import torch
    import wire
    from surroundings import kept

    del sys.path[: len(own)]
    sys.meta_path.insert(0, AbsentFinder())
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "r+b", buffering=0) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # what the student prints is noise
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started us may ignore it
    worker = Worker(requests, replies, wire, torch, kept)
    if stat.S_ISSOCK(os.fstat(requests.fileno()).st_mode):
        control = socket.socket(fileno=os.dup(requests.fileno()))
        requests.close()
        replies.close()
        connection = forked(control)
        worker.requests, worker.replies = connection.makefile("rb"), connection.makefile("wb")
    worker.run()


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)  # no thread and no exit handler of the student's holds the end back
