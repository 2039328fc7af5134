"""How marking is stopped: Ctrl-C is a wish, and what is in hand is not lost by the first one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

FIRST = b"\nStopping: the submissions in hand are finished first (again: stop now)\n"
SECOND = b"\nStopping now.\n"


class Stop:
    """While entered, it counts how often somebody asked to stop; at the second time all workers end.

    Signals reach the main thread alone: in another one, nothing is changed.
    """

    def __init__(self) -> None:
        self.asked = 0

    def __enter__(self) -> Stop:
        self._others = multiprocessing.active_children()
        self._listens = threading.current_thread() is threading.main_thread()
        if self._listens:
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._listens:
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, *_: object) -> None:
        self.asked += 1
        os.write(2, FIRST if self.asked == 1 else SECOND)  # print may be in the middle of a print
        if self.asked > 1:
            for process in multiprocessing.active_children():
                if process not in self._others:
                    process.terminate()

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """A process that begins in here ignores Ctrl-C, which a terminal sends to every process."""
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if self._listens else None
        try:
            yield
        finally:
            if self._listens:
                signal.signal(signal.SIGINT, handler)


class AskedToEnd(SystemExit):
    """The grader's own end: no exit that a student's function called for, which is an answer."""


def begin_worker() -> None:
    """The first thing in a process of ours: Ctrl-C is not for it, and asked to end it cleans up.

    Ctrl-C is ignored and not handled: with two signals at once, the second one may find another thread,
    and the main thread would go on waiting.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    torch.set_num_threads(1)


def _end(*_: object) -> None:
    raise AskedToEnd(1)
