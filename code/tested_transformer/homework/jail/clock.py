"""How long a process worked, and how long it had to wait for a processor: both as the system counts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")


def processor_seconds(pid: int) -> float | None:
    """The time that a process and those that it started took of a processor; None if nobody says."""
    ticks = 0
    for one in _family(pid):
        try:
            fields = (PROC / str(one) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        # In user mode and in the kernel; then the same of those that it started and that have ended.
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK") if ticks else None


def delay_seconds(pid: int) -> float:
    """The time in which all of its threads were ready to run and others ran; 0.0 if nobody says."""
    waited = 0
    for one in _family(pid):
        try:
            words = (PROC / str(one) / "schedstat").read_text().split()
        except OSError:
            continue
        waited += int(words[1])  # nanoseconds of the first thread, in which a function is called
    return waited / 1e9


def _family(pid: int) -> Iterator[int]:
    """A process, and those that it started."""
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        yield one
        try:
            waiting += map(int, (PROC / f"{one}/task/{one}/children").read_text().split())
        except OSError:
            continue
