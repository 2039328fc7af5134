"""What the tests of the jail and of sessions share."""

import os
import shutil
import subprocess
import threading
import time
from contextlib import suppress

import pytest

from tested_transformer.homework.jail.bubblewrap import Limits
from tested_transformer.homework.jail.session import Ended

SMALL = Limits(wall_seconds=20.0, cpu_seconds=10, memory_bytes=512 << 20, answer_bytes=1 << 20)


def trouble():
    """Why no jail can be made here, or an empty string."""
    if os.name == "nt" or shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    tried = subprocess.run(
        ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"], capture_output=True, text=True
    )
    return f"bubblewrap cannot make a jail here: {tried.stderr[:99]}" if tried.returncode else ""


WHY = trouble()
needs_jail = pytest.mark.skipif(bool(WHY), reason=WHY or "there is a jail")


def outcome(session, function, *arguments):
    """What a call brings: its answer, the kind and text of an exception, or the flag of an end."""
    try:
        return "answer", session.call(function, list(arguments), {})[0]
    except Ended as end:
        return end.flag, end.text
    except Exception as error:
        return type(error).__name__, str(error)


def held():
    """Our threads and open files."""
    files = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing itself
            files[name] = os.readlink(f"/proc/self/fd/{name}")
    return set(threading.enumerate()), files


def more_than(before):
    threads, files = held()
    new = {n: file for n, file in files.items() if before[1].get(n) != file}
    return [*(threads - before[0]), *new.items()]


def soon(true, seconds=5.0):
    """Does it become true?"""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
