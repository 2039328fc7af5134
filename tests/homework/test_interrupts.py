"""Ctrl-C while a class is marked: said at once, nothing lost, nothing left running."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from handed_in import code, notebook, write

from tested_transformer.homework.marking import interrupts
from tested_transformer.homework.marking.interrupts import Stop

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="signals as terminals of Unix send them"),
]
BODY = """
import os, pathlib, signal, time
FOLDER = pathlib.Path({folder!r})

def one_way(w_query, w_key):
    (FOLDER / "new").write_text(f"{{os.getpid()}} {{signal.getsignal(signal.SIGINT)}}")
    os.replace(FOLDER / "new", FOLDER / "began")
    while not (FOLDER / "go").exists():
        time.sleep(0.05)
    return w_query
"""
PATIENCE = 90  # far more than Python and torch need to come up


class Marking:
    """The command on three submissions that wait for a file, in a process group of its own."""

    def __init__(self, folder):
        self.folder, self.text = folder, ""
        cells = code(BODY.format(folder=str(folder)))
        write(folder, {f"class/s0{n}.ipynb": notebook(*cells) for n in (1, 2, 3)})
        command = [sys.executable, "-m", "tested_transformer.homework", "grade", folder / "class",
                   "--assignment", "1", "--out", folder / "out", "--jobs", "1", "--seconds", "600",
                   "--without-jail-for-my-own-code"]  # fmt: skip
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        while chunk := os.read(self.process.stderr.fileno(), 1 << 12):
            self.text += chunk.decode()

    def wait_for(self, true):
        end = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < end, self.text
            assert self.process.poll() is None, self.text
            time.sleep(0.02)

    def student(self) -> int:
        """The process of the first function that is called."""
        began = self.folder / "began"
        self.wait_for(began.exists)
        number, handler = began.read_text().split(maxsplit=1)
        assert "default_int_handler" in handler  # as in a self-check: it is not ignored there
        return int(number)

    def interrupt(self, whole_group=False):
        """As `kill -INT` sends it, or as a terminal does."""
        (os.killpg if whole_group else os.kill)(self.process.pid, signal.SIGINT)

    def ends(self) -> list[str]:
        """The submissions that are marked, when the command has ended as it must."""
        assert self.process.wait(PATIENCE) == 130, self.text
        self.reader.join(PATIENCE)
        assert "Traceback" not in self.text
        assert self.text.endswith(
            "\nStopped. What is marked stays marked: the same command goes on.\n"
        )
        return sorted(path.name[:3] for path in (self.folder / "out" / "marks").iterdir())


@pytest.fixture
def marking(tmp_path):
    made = Marking(tmp_path)
    yield made
    if made.process.poll() is None:
        os.killpg(made.process.pid, signal.SIGKILL)
        made.process.wait()
    made.process.stderr.close()


@pytest.mark.parametrize("whole_group", [False, True], ids=["kill -INT", "a terminal"])
def test_the_first_time_what_is_in_hand_is_finished_and_kept(marking, whole_group):
    marking.student()
    assert "in hand: s01]" in marking.text
    marking.interrupt(whole_group)
    marking.wait_for(lambda: interrupts.FIRST.decode() in marking.text)
    (marking.folder / "go").touch()
    assert marking.ends() == ["s01"]
    assert "s02" not in marking.text


@pytest.mark.parametrize("whole_group", [False, True], ids=["kill -INT", "a terminal"])
def test_the_second_time_all_ends_at_once(marking, whole_group):
    student = marking.student()
    marking.interrupt(whole_group)
    marking.wait_for(lambda: interrupts.FIRST.decode() in marking.text)
    marking.interrupt(whole_group)
    assert marking.ends() == []
    assert interrupts.SECOND.decode() in marking.text
    with pytest.raises(ProcessLookupError):
        os.kill(student, 0)


def test_workers_that_are_coming_up_do_not_see_it(marking):
    marking.wait_for(lambda: "in hand: s01]" in marking.text)
    marking.interrupt(whole_group=True)
    marking.student()
    (marking.folder / "go").touch()
    assert marking.ends() == ["s01"]


def test_a_worker_ignores_it_on_systems_too_that_inherit_nothing():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        interrupts.begin_worker()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_what_was_there_is_there_again_and_threads_are_left_alone():
    before = signal.getsignal(signal.SIGINT)
    with Stop() as stop:
        assert signal.getsignal(signal.SIGINT) != before
        with stop.unseen():
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        signal.raise_signal(signal.SIGINT)
        assert stop.asked == 1
    assert signal.getsignal(signal.SIGINT) == before
    found = []

    def enter():
        with Stop() as stop, stop.unseen():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [before]
