"""The grader's side of a jail: start the worker, talk to it, and take every answer for a stranger's."""

from __future__ import annotations

import builtins
import math
import os
import queue
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from ..words import count
from . import clock, wire
from .bubblewrap import (
    ENVIRONMENT,
    JailError,
    Limits,
    bare_command,
    find_bubblewrap,
    jail_command,
    system_call_filter,
)

START_SECONDS = 120  # for Python and torch to come up, which is no part of a student's time
WAITING = 16  # frames that nobody asked for
MOST_ASKS = 20_000  # calls of implementations on trial, by one test
MOST_AXIS, MOST_SIZE = 64, 1 << 16  # of the tensors in them
TEXT = 300
USED_UP = "the processor's time is used up"
UNFIT = ("not a tensor", "too large")  # flags of an answer that is none
ANSWERS = {"load": ("loaded", 1), "renew": ("loaded", 1),
           "call": ("answer", 4), "gradients": ("answer", 4)}  # fmt: skip
MOST_DELAY = (
    20  # times the seconds that a student has: as long as a busy machine may keep us waiting
)
LEAST_SECONDS = 0.02  # to wait for: a few ticks of the system's clock
END_SECONDS = 2  # for a thread of ours to see that the process is gone
GRACE_SECONDS = 5  # for a process that closed its pipe to end, and say how


class Ended(BaseException):
    """The student's process is gone, or was sent away. `flag` is a word for a table.

    No Exception: what a function raises is the judge's to report, and this is not.
    """

    def __init__(self, flag: str, text: str = "") -> None:
        super().__init__(flag)
        self.flag, self.text = flag, printable(text)


@dataclass
class EndOfFrames:
    """The last word of the listener, which no frame can say."""

    flag: str = ""
    text: str = ""


class StudentError(RuntimeError):
    """An exception of a kind that only the student's process has."""


def printable(text: Any) -> str:
    """A stranger's text on one line, not too long."""
    return "".join(c if c.isprintable() else " " for c in str(text)[:TEXT])


class JailSession:
    """A student's definitions, loaded into a jail of their own. Use it in a `with` statement.

    `without_jail_for_my_own_code=True` only limits the process: what runs can read, change and send
    away everything that its owner can. With `forks`, `renew` goes on in a process that has seen no call,
    within the limits for all of them together; without a jail it is always the same process.

    Raises: JailMissing if this machine has no jail; JailError if the jail ends before the student's
        code begins; Ended if the definitions run into a limit, and what they raise otherwise.
    """

    def __init__(
        self,
        source: str,
        *,
        forbidden: Sequence[str] = (),
        limits: Limits | None = None,
        without_jail_for_my_own_code: bool = False,
        forks: bool = False,
    ) -> None:
        self.limits = limits or Limits()
        self._definitions = ["load", np.frombuffer(source.encode(), np.uint8), list(forbidden)]
        self._forks = forks and not without_jail_for_my_own_code
        self._control: socket.socket | None = None  # to a worker that forks
        self.seconds = 0.0  # of waiting for the student
        self.delay = 0.0  # of these, as far as we know: of waiting for a processor beside others
        self.serving = 0.0  # of our processor, for the implementations that a test asks for
        self.asks = 0
        self.flags: list[str] = []
        self.settings: Any = []
        self.served: list[Callable[..., Any]] = []
        self._kinds: dict[
            str, type[StudentError]
        ] = {}  # one for each of their own exceptions, by name
        self._output = bytearray()
        self._replies: queue.Queue = queue.Queue(WAITING)
        self._ended: Ended | None = None
        self._closed = False
        self._start(jailed=not without_jail_for_my_own_code)
        try:
            self._wait_until_ready()
            self._request([*self._definitions, asdict(self.limits)])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> JailSession:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and all that belongs to it."""
        if self._closed:  # its number may be another's by now
            return
        self._closed = True
        with suppress(ProcessLookupError, PermissionError):
            if os.name == "posix":
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()
        self._hang_up()
        if self._control:
            self._control.close()
        drain = self._threads[-1]
        drain.join(END_SECONDS)
        if not drain.is_alive():
            self._process.stderr.close()

    def call(self, function: str, arguments: list, named: dict) -> tuple[Any, Any]:
        """What the function answers, and the arguments that it changed (by position or name).

        Changes show here, where the student's process cannot reach what was sent. `settings` holds what
        it set of torch, in words. Raises: Ended, and whatever the function raised.
        """
        before = tensors_in(arguments, named)
        _, answer, after, self.settings = self._request(["call", function, arguments, named])
        if not isinstance(after, dict) or not all(isinstance(a, Tensor) for a in after.values()):
            raise Ended("garbled", "no arguments")
        if set(after) != set(before):
            raise Ended("garbled", "other arguments")
        return answer, {n: a for n, a in after.items() if not wire.same(before[n].detach(), a)}

    def renew(self) -> None:
        """Execute the definitions again: what an earlier call left in them is gone. Raises as the start.

        The implementations that were served are gone too: who could call them again could compare.
        """
        self.served.clear()
        if not self._control:
            self._request(["renew"])
            return
        left = math.ceil(self.limits.cpu_seconds - self.processor_seconds)
        if left <= 0:
            raise self._end(Ended("timeout", USED_UP))
        self.delay = clock.delay_seconds(self._process.pid) - self._delayed_before
        self._hang_up()
        self._connect()
        self._receive(("ready", 1))
        self._delayed_before = clock.delay_seconds(self._process.pid) - self.delay
        self._request([*self._definitions, asdict(replace(self.limits, cpu_seconds=left))])

    @property
    def processor_seconds(self) -> float:
        """What the student's code took of a processor; where that is not known, how long we waited."""
        used = clock.processor_seconds(self._process.pid)
        return self.seconds if used is None else max(0.0, used - self._used_before)

    def gradients(
        self, function: str, arguments: list, named: dict, names: list[str], gradient: Tensor
    ) -> Any:
        """The gradients by the named arguments (by position or name), given that by the answer.

        Raises: Ended, and whatever the function raised.
        """
        return self._request(["gradients", function, arguments, named, names, gradient])[1]

    # ------------------------------------------------------------------------------- the process

    def _start(self, jailed: bool) -> None:
        options: dict[str, Any] = {"start_new_session": True} if os.name == "posix" else {}
        with tempfile.TemporaryFile() as rules:
            command = bare_command()
            if jailed:
                bubblewrap = find_bubblewrap()
                rules.write(system_call_filter(forks=self._forks))
                rules.seek(0)
                command = jail_command(bubblewrap, self.limits, rules.fileno(), forks=self._forks)
                options["pass_fds"] = (rules.fileno(),)
            environment = ENVIRONMENT if os.name == "posix" else None
            theirs: Any = subprocess.PIPE
            if self._forks:
                self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._process = subprocess.Popen(
                command, env=environment, cwd=os.path.abspath(os.sep), stdin=theirs,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
            )  # fmt: skip
        self._threads = [threading.Thread(target=self._drain, daemon=True)]
        self._threads[0].start()
        if self._forks:
            theirs.close()
            self._process.stdout.close()
            self._connect()
        else:
            self._talk(self._process.stdin, self._process.stdout)

    def _connect(self) -> None:
        """Ask for a process in which nothing has run, and talk to it."""
        self._connection, theirs = socket.socketpair()
        with theirs, suppress(OSError):  # the worker may be gone: who listens will see the end
            socket.send_fds(self._control, [system_call_filter()], [theirs.fileno()])
        self._talk(self._connection.makefile("wb"), self._connection.makefile("rb"))

    def _talk(self, requests: Any, replies: Any) -> None:
        """Begin to talk to a process by these streams."""
        self._streams, self._replies = (requests, replies), queue.Queue(WAITING)
        listener = threading.Thread(target=self._listen, args=(replies, self._replies), daemon=True)
        self._threads[:-1] = [listener]
        listener.start()

    def _hang_up(self) -> None:
        """Talk no more: to a process that is gone, or that will be ended for the next."""
        ended, self._replies = self._replies, queue.Queue(WAITING)
        if self._control:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            self._connection.close()
        with suppress(queue.Empty):
            while True:  # a listener that waits for room must see the end of its stream
                ended.get_nowait()
        (requests, replies), listener = self._streams, self._threads[0]
        with suppress(OSError):
            requests.close()
        listener.join(END_SECONDS)
        if not listener.is_alive():  # without a jail a process may stay behind, and hold the pipe
            replies.close()

    def _listen(self, stream: Any, replies: queue.Queue) -> None:
        """Put frames into the queue until there are no more; the last one says why."""
        last = EndOfFrames()
        try:
            while self._replies is replies:
                replies.put(wire.read(stream, self.limits.answer_bytes))
        except wire.TooLarge as error:
            last = EndOfFrames("too large", str(error))
        except ValueError as error:
            last = EndOfFrames("garbled", str(error))
        except (EOFError, OSError):
            pass
        replies.put(last)

    def _drain(self) -> None:
        """Read what is printed, and keep the beginning: a writer must neither wait nor fill memory."""
        with suppress(OSError, ValueError):
            while chunk := os.read(self._process.stderr.fileno(), 1 << 16):
                self._output += chunk[: max(0, self.limits.output_bytes - len(self._output))]

    def _wait_until_ready(self) -> None:
        try:
            word = self._replies.get(timeout=START_SECONDS)
        except queue.Empty:
            word = ["late"]
        if word != ["ready"]:
            self.close()
            printed = self._output.decode(errors="replace")[-TEXT:]
            raise JailError(f"the jail did not come up ({self._process.returncode}): {printed}")
        self._used_before = clock.processor_seconds(self._process.pid) or 0.0
        self._delayed_before = clock.delay_seconds(self._process.pid)

    # ------------------------------------------------------------------------------- the talk

    def _request(self, message: list) -> list:
        """Send a message, and give the answer."""
        if self._ended:
            raise self._ended
        try:
            self._send(message)
        except Ended as end:
            raise self._end(end) from None
        return self._receive(ANSWERS[message[0]])

    def _receive(self, expected: tuple[str, int]) -> list:
        """Wait for an answer of this form, and serve what is asked meanwhile."""
        try:
            while True:
                reply = self._next()
                form = (reply[0], len(reply)) if isinstance(reply, list) and reply else ()
                if form == expected:
                    return reply
                if form != ("ask", 4):
                    raise self._no_answer(form, reply)
                start = time.thread_time()
                served = self._serve(*reply[1:])
                self.serving += time.thread_time() - start
                if self.serving > self.limits.wall_seconds:
                    seconds = f"{self.limits.wall_seconds:g} seconds in {count(self.asks, 'call')}"
                    raise Ended(
                        "timeout", f"the implementations that the test calls took {seconds}"
                    )
                self._send(served)
        except Ended as end:
            raise self._end(end) from None

    def _end(self, end: Ended) -> Ended:
        """The end, for every later request too: an answer that comes then is none to it."""
        self._ended = end
        return end

    def _no_answer(self, form: tuple, reply: Any) -> BaseException:
        """What came in place of an answer."""
        if isinstance(reply, EndOfFrames):
            return self._over(reply)
        if form == ("raised", 3):
            return self._as_raised(*reply[1:])
        if form == ("unfit", 3) and reply[1] in UNFIT:
            if reply[1] not in self.flags:
                self.flags.append(reply[1])
            return TypeError(f"the answer: expected a tensor, got {printable(reply[2])}")
        return Ended("garbled", "no answer of the agreed form")

    def _send(self, message: list) -> None:
        frame, start, left = wire.pack(message), time.monotonic(), self._seconds_left()
        timer = threading.Timer(left, self._process.kill)
        timer.start()  # a student's process that does not read must not hold us
        try:
            self._streams[0].write(frame)
            self._streams[0].flush()
        except OSError:
            if time.monotonic() - start >= left:
                raise Ended("timeout", "nobody read what was sent") from None
            # else the process is gone by itself: the queue says how
        finally:
            timer.cancel()
            self.seconds += time.monotonic() - start

    def _seconds_left(self) -> float:
        return max(0.0, self.limits.wall_seconds - self.seconds + self.delay)

    def _next(self) -> Any:
        while True:
            start = time.monotonic()
            try:
                return self._replies.get(timeout=self._seconds_left())
            except queue.Empty:
                pass
            finally:
                self.seconds += time.monotonic() - start
            # Time that a busy machine gave to others is not the student's.
            self.delay = clock.delay_seconds(self._process.pid) - self._delayed_before
            late = self.seconds > MOST_DELAY * self.limits.wall_seconds
            if late or self._seconds_left() < LEAST_SECONDS:
                raise Ended("timeout")

    def _over(self, last: EndOfFrames) -> Ended:
        """Why there will be no more frames."""
        if last.flag:
            return Ended(last.flag, last.text)
        if self._control:  # the worker ends as the process did that it made
            with suppress(OSError):
                self._control.shutdown(socket.SHUT_WR)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_SECONDS)
        status = self._process.returncode or 0
        # bubblewrap passes a signal on as 128 + its number
        number = -status if status < 0 else status - 128
        if os.name == "posix" and number == signal.SIGXCPU:
            return Ended("timeout", USED_UP)
        if number > 0:
            return Ended("killed", f"signal {number}")
        return Ended("ended itself", f"status {status}")

    def _as_raised(self, kind: Any, text: Any) -> BaseException:
        """The exception that the student's process reports, of a kind that is known here."""
        kind, text = printable(kind), printable(text)
        if kind in ("MemoryError", "Forbidden"):
            return Ended("memory" if kind == "MemoryError" else "forbidden", text)
        known = getattr(builtins, kind, None)
        if isinstance(known, type) and issubclass(known, Exception):
            with suppress(Exception):
                return known(text)
        if not kind.isidentifier():
            return StudentError(f"{kind}: {text}")
        return self._kinds.setdefault(kind, type(kind, (StudentError,), {}))(text)

    # ------------------------------------------------------------------------------- bug hunts

    def serve(self, implementation: Callable[..., Any]) -> dict[str, int]:
        """The argument that stands for an implementation which stays here."""
        self.served.append(implementation)
        return {"implementation": len(self.served) - 1}

    def _serve(self, number: Any, arguments: Any, named: Any) -> list:
        """Call an implementation with a student's arguments; what it raises shows its kind alone."""
        self.asks += 1
        if self.asks > MOST_ASKS:
            raise Ended("timeout", f"more than {MOST_ASKS} calls of implementations")
        if not isinstance(number, int) or not 0 <= number < len(self.served):
            raise Ended("garbled", "no such implementation")
        if not isinstance(arguments, list) or not isinstance(named, dict):
            raise Ended("garbled", "no arguments")
        try:
            _check_small([arguments, named])
            before = tensors_in(arguments, named)
            before = {name: tensor.clone() for name, tensor in before.items()}
            answer = self.served[number](*arguments, **named)
            changed = {name: tensor for name, tensor in tensors_in(arguments, named).items()
                       if not wire.same(before[name], tensor)}  # fmt: skip
            reply = ["answer", answer, changed]
            wire.pack(reply)
        except Exception as error:
            known = getattr(builtins, type(error).__name__, None)
            return ["raised", known.__name__ if known else "RuntimeError"]
        return reply


def _check_small(value: Any) -> None:
    """Raise ValueError for arguments that would cost this process much."""
    if isinstance(value, Tensor):
        if value.ndim > 6 or max([0, *value.shape]) > MOST_AXIS or value.numel() > MOST_SIZE:
            raise ValueError(f"a tensor of shape {tuple(value.shape)} is too large here")
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_small(item)
    elif isinstance(value, dict):
        _check_small(list(value.values()))
    elif isinstance(value, str) or (isinstance(value, int) and abs(value) > 4096):
        raise ValueError("an argument that no implementation takes")


def tensors_in(arguments: list, named: dict) -> dict[str, Tensor]:
    """The arguments of a call that are tensors, by position or name."""
    every = {**{str(i): a for i, a in enumerate(arguments)}, **named}
    return {name: value for name, value in every.items() if isinstance(value, Tensor)}
