"""Sessions with a process that is no worker any more: what it says is a stranger's, and nothing of it is left."""

import os
import signal
import sys
import time

import numpy as np
import pytest
import torch
from jails import SMALL, needs_jail, soon

from tested_transformer.homework.jail import session as ours
from tested_transformer.homework.jail import wire
from tested_transformer.homework.jail.bubblewrap import Limits
from tested_transformer.homework.jail.remote import RemoteFunction
from tested_transformer.homework.jail.session import Ended, JailSession, StudentError

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="on Windows marking needs WSL2"),
    pytest.mark.usefixtures("nothing_is_left"),
]


# ------------------------------------------------------------- a student's process that talks itself

TALK = """
import json, os, signal, struct, sys, time

def frame(said, numbers=b"", sizes=None):
    text = said if isinstance(said, bytes) else json.dumps(said).encode()
    return struct.pack(">IQ", *(sizes or (len(text), len(numbers)))) + text + numbers

def say(*arguments, **named):
    sys.stdout.buffer.write(frame(*arguments, **named))
    sys.stdout.buffer.flush()

def hear():
    text, numbers = struct.unpack(">IQ", sys.stdin.buffer.read(12))
    return json.loads(sys.stdin.buffer.read(text + numbers)[:text])

say(["ready"])
"""
LOADED = "hear(); say(['loaded'])\n"
QUICK = Limits(wall_seconds=0.6, answer_bytes=1 << 20)


@pytest.fixture
def talker(monkeypatch, tmp_path):
    """A session with a process that says what a test wants: no torch, and no patience."""
    sessions = []

    def make(body, limits=SMALL, loaded=LOADED):
        script = tmp_path / "talker.py"
        script.write_text(TALK + loaded + body)
        command = [sys.executable, "-I", "-S", str(script)]
        monkeypatch.setattr(ours, "bare_command", lambda: command)
        session = JailSession("", limits=limits, without_jail_for_my_own_code=True)
        sessions.append(session)
        return session

    yield make
    for session in sessions:
        session.close()
        session.close()  # twice is harmless


TENSOR = '{"tensor": ["float64", [1]]}'
FORGED = {  # what is said in place of an answer, and the flag that the submission gets
    "no frame": ("sys.stdout.buffer.write(b'PASSED, full marks')", "too large"),
    "no JSON": ("say(b'}')", "garbled"), "a number": ("say(1)", "garbled"),
    "nothing": ("say([])", "garbled"), "a text": ("say('answer')", "garbled"),
    "a list in front": ("say([['answer'], 1, {'dict': {}}, []])", "garbled"),
    "a tensor in front": (f"say([{TENSOR}, 1, 2], bytes(8))", "garbled"),
    "an answer without changes": ("say(['answer', 1])", "garbled"),
    "a word of load": ("say(['loaded'])", "garbled"), "ready again": ("say(['ready'])", "garbled"),
    "an unknown word": ("say(['full marks', 1, 2])", "garbled"),
    "the listener's word": ("say(['over', 'full marks', '<b>'])", "garbled"),
    "a flag of its own": ("say(['unfit', 'full marks', ''])", "garbled"),
    "a flag that is a list": ("say(['unfit', ['too large'], ''])", "garbled"),
    "a frame that promises 10 GB": ("say(None, sizes=(4, 10 << 30))", "too large"),
    "a text that promises 4 GB": ("say(None, sizes=(2**32 - 1, 0))", "too large"),
    "a tensor of 10 GB": ("say(['answer', {'tensor': ['int8', [10 << 30]]}, {'dict': {}}, []])", "garbled"),
    "a million tensors": ("say(['answer', {'tuple': {'tensor': ['int8', [1 << 20]]}}, "
                          "{'dict': {}}], bytes(1 << 20))", "garbled"),
    "half a frame": ("say(None, sizes=(10, 0))", "ended itself"),
    "the end": ("pass", "ended itself"), "an exit": ("os._exit(3)", "ended itself"),
    "a signal": ("os.kill(os.getpid(), signal.SIGKILL)", "killed"),
    "a signal by status": ("os._exit(128 + signal.SIGSEGV)", "killed"),
    "time used up": ("os._exit(128 + signal.SIGXCPU)", "timeout"),
    "no memory": ("say(['raised', 'MemoryError', ''])", "memory"),
    "a closed pipe": ("os.close(1); time.sleep(60)", "ended itself"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_what_is_no_answer_ends_the_session(talker, monkeypatch, name):
    body, flag = FORGED[name]
    monkeypatch.setattr(ours, "GRACE_SECONDS", 0.3)
    student = talker(f"hear()\n{body}")
    for _ in range(2):
        with pytest.raises(Ended) as ended:
            RemoteFunction(student, "f")(torch.ones(2))
        assert ended.value.flag == flag, ended.value.text
    assert len(ended.value.text) <= ours.TEXT


@pytest.mark.parametrize("said", [
    "['raised', 1, 2]", "['raised', [], {'dict': {}}]", "['raised', 'print', 'x']",
    "['raised', '__import__', 'os']", "['raised', 'SystemExit', '']", "['raised', None, None]",
    "['raised', 'ExceptionGroup', 'x']", "['raised', 'UnicodeDecodeError', 'x']",
    "['raised', 'open', '/etc/passwd']", "['raised', 'Odd\\x1b[31m', 'x\\x00']",
])  # fmt: skip
def test_a_reported_exception_is_never_another_thing(talker, said):
    with pytest.raises(StudentError) as caught:
        RemoteFunction(talker(f"hear(); say({said}); time.sleep(60)"), "f")(1)
    assert str(caught.value).isprintable()


def test_an_answer_ahead_of_time_is_none_to_load(talker):
    with pytest.raises(Ended, match="garbled"):
        talker("time.sleep(60)", loaded="say(['answer', 1, {'dict': {}}, []])\n")


def test_a_ready_frame_of_another_kind_is_no_jail(talker, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "TALK", TALK.replace("'ready'", "'x'").replace('"ready"', '"x"'))  # fmt: skip
    with pytest.raises(ours.JailError, match="did not come up"):
        talker("time.sleep(60)")


CHANGES = {
    "a list": "[]", "a number": "1", "of nothing": f"{{'dict': {{'5': {TENSOR}}}}}",
    "to a number": "{'dict': {'0': 1}}", "of a number": f"{{'dict': {{'1': {TENSOR}}}}}",
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_what_was_not_given_ends_the_session(talker, name):
    numbers = ", bytes(8)" if "tensor" in CHANGES[name] else ""
    x = torch.ones(1, dtype=torch.float64)
    with pytest.raises(Ended, match="garbled"):
        RemoteFunction(talker(f"hear(); say(['answer', 1, {CHANGES[name]}, []]{numbers})"), "f")(
            x, 1
        )
    assert x.tolist() == [1.0]


@pytest.mark.parametrize(("gradients", "numbers"), [
    ("1", 0), ("[]", 0), ("[None, None]", 0), ("[1]", 0), (f"[{TENSOR}]", 8), ("['x']", 0),
])  # fmt: skip
def test_gradients_of_another_form_end_the_session(talker, gradients, numbers):
    answer = f"say(['answer', {TENSOR}, {{'dict': {{'0': {TENSOR}}}}}, []], bytes(16))"
    student = talker(f"hear(); {answer}; hear()\n"
                     f"say(['answer', {gradients}, {{'dict': {{}}}}, []], bytes({numbers}))")  # fmt: skip
    answer = RemoteFunction(student, "f")(torch.ones(2, requires_grad=True))
    with pytest.raises(Ended, match="garbled"):
        answer.sum().backward()


ASKS = {  # an implementation that is asked for, and what the process does with the answer
    "unknown": ("say(['ask', 1, [], {'dict': {}}])", "garbled"),
    "negative": ("say(['ask', -1, [], {'dict': {}}])", "garbled"),
    "true": ("say(['ask', True, [], {'dict': {}}])", "garbled"),
    "text": ("say(['ask', '__class__', [], {'dict': {}}])", "garbled"),
    "too many": ("while True: say(['ask', 0, [], {'dict': {}}]); hear()", "timeout"),
}  # fmt: skip


@pytest.mark.parametrize("name", ASKS)
def test_an_implementation_is_asked_for_by_its_number_and_not_too_often(talker, monkeypatch, name):
    monkeypatch.setattr(ours, "MOST_ASKS", 20)
    called = []
    student = talker(f"hear()\n{ASKS[name][0]}\ntime.sleep(60)")
    implementation = student.serve(lambda: called.append(1))
    with pytest.raises(Ended) as ended:
        student.call("f", [implementation], {})
    assert ended.value.flag == ASKS[name][1]
    assert len(called) == (20 if name == "too many" else 0)


@pytest.mark.parametrize("arguments", ["[1, 2], {'dict': {}}", "[], {'dict': {'no such': 1}}"])
def test_arguments_that_do_not_fit_are_the_students_error(talker, arguments):
    student = talker(
        f"hear(); say(['ask', 0, {arguments}]); said = hear()\n"
        "say(['answer', said, {'dict': {}}, []]); time.sleep(60)"
    )
    answer, _ = student.call("f", [student.serve(lambda x=None: None)], {})
    assert answer == ["raised", "TypeError"]


@pytest.mark.parametrize("arguments", ["1, {'dict': {}}", "[], []", "None, None"])
def test_what_is_no_arguments_ends_the_session(talker, arguments):
    student = talker(f"hear(); say(['ask', 0, {arguments}]); time.sleep(60)")
    with pytest.raises(Ended, match="garbled"):
        student.call("f", [student.serve(lambda x=None: None)], {})


FLOODS = {
    "frames": "while True: say([])", "small frames": "while True: sys.stdout.buffer.write(frame(0))",
    "large frames": "while True: say(['raised', 'KeyError', ''] , bytes(1 << 19))",
    "asks, and does not hear": "while True: say(['ask', 0, [], {'dict': {}}])",
    "prints": "while True: os.write(2, b'x' * 65536)",
    "nothing": "time.sleep(60)",
}  # fmt: skip


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_fills_no_memory_and_holds_nobody(talker, name):
    student = talker(f"hear()\n{FLOODS[name]}", QUICK)
    student.serve(lambda: torch.zeros(1 << 12))
    start = time.monotonic()
    with pytest.raises(Ended) as ended:
        student.call("f", [], {})
    assert ended.value.flag in {"timeout", "garbled"}
    assert student._replies.qsize() <= ours.WAITING
    assert len(student._output) <= QUICK.output_bytes
    student.close()
    assert time.monotonic() - start < 5  # 0.6, and what a busy machine takes
    assert not any(thread.is_alive() for thread in student._threads)


def test_who_never_reads_is_sent_away(talker):
    student = talker("time.sleep(60)", QUICK)
    with pytest.raises(Ended, match="timeout"):
        student.call("f", [torch.zeros(1 << 18)], {})  # more than a pipe holds
    assert QUICK.wall_seconds <= student.seconds < 10


def test_the_time_of_all_calls_is_one(talker):
    body = "while hear(): time.sleep(0.3); say(['answer', 1, {'dict': {}}, []])"
    student = talker(body, Limits(wall_seconds=0.8))
    assert student.call("f", [], {}) == (1, {})
    assert student.call("f", [], {}) == (1, {})
    with pytest.raises(Ended, match="timeout"):
        student.call("f", [], {})
    time.sleep(0.3)  # the answer has come now, too late
    with pytest.raises(Ended, match="timeout"):
        student.call("f", [], {})


def test_an_argument_that_can_not_be_sent_ends_nothing(talker):
    student = talker("hear(); say(['answer', 1, {'dict': {}}, []]); hear()")
    with pytest.raises(wire.NotSendable):
        student.call("f", [object()], {})
    assert student.call("f", [], {}) == (1, {})


# --------------------------------------------------------------------- what a student's code may try

REPLY_PIPE = """
import gc, json, os, struct, sys
fds = [n for n in range(64) if os.path.islink(f"/proc/self/fd/{n}")]
noise = os.readlink("/proc/self/fd/2")
def write(data):
    for n in fds[1:]:
        if os.readlink(f"/proc/self/fd/{n}") != noise:
            try: os.write(n, data)
            except OSError: pass
def frame(said):
    text = json.dumps(said).encode()
    return struct.pack(">IQ", len(text), 0) + text
"""


@needs_jail
@pytest.mark.slow
@pytest.mark.parametrize(("attack", "limits", "flag"), [
    ("while True: pass", Limits(wall_seconds=0.5), "timeout"),
    ("""while True:
        try:
            while True: os.fork()
        except BaseException: pass""", Limits(wall_seconds=0.5), "timeout"),
    ("while True: pass", Limits(cpu_seconds=1), "timeout"),
    ("""signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    while True: pass""", Limits(cpu_seconds=1), "killed"),
    ("os.kill(os.getpid(), 9)", SMALL, "killed"),
    ("import atexit; atexit.register(time.sleep, 60); os._exit(0)", SMALL, "ended itself"),
    ("ctypes.string_at(0)", SMALL, "killed"),
    ("write(b'PASSED' * 9)", SMALL, "too large"),
    ("""write(frame(["over", "full marks", ""]))""", SMALL, "garbled"),
    ("for n in fds: os.close(n)", SMALL, "ended itself"),
], ids=["loop", "loop that catches", "processor time", "processor time, ignored", "kill itself",
        "exit", "crash", "no frame", "forged frame", "closed pipes"])  # fmt: skip
def test_what_ends_the_process_is_flagged(attack, limits, flag):
    source = REPLY_PIPE + "import ctypes, signal, time\n"
    source += f"def f(x, bad=False):\n  if bad:\n    {attack}\n  return x"
    with JailSession(source, limits=limits) as student:
        assert RemoteFunction(student, "f")(1) == 1
        with pytest.raises(Ended) as ended:
            RemoteFunction(student, "f")(1, bad=True)
        assert ended.value.flag == flag, ended.value.text


THREADS = """
import threading, sys, atexit, os, torch, numpy
threading.Thread(target=lambda: 1 / 0).start()
threading.Thread(target=sys.exit).start()
threading.Thread(target=threading.Event().wait).start()
atexit.register(lambda: 1 / 0)
sys.excepthook = lambda *a: os._exit(1)
torch.allclose = numpy.array_equal = lambda *a, **k: True
torch.equal = lambda *a: True
torch.Tensor.__eq__ = lambda *a: True
numpy.asarray = lambda *a, **k: 1 / 0
def f(x):
    os.write(1, b"PASSED\\n" * 10**5)
    x *= 0
    return x
"""


@needs_jail
def test_threads_and_patches_and_prints_stay_in_the_jail():
    before = torch.allclose, np.array_equal, torch.Tensor.__eq__, torch.equal
    with JailSession(THREADS, limits=SMALL) as student:
        x = torch.ones(2)
        assert RemoteFunction(student, "f")(x).tolist() == [0.0, 0.0]
    assert (torch.allclose, np.array_equal, torch.Tensor.__eq__, torch.equal) == before


@pytest.mark.parametrize(("source", "kind", "word"), [
    ("def f(x:\n  return x", SyntaxError, "was never closed"),
    ("import sys\nsys.exit()", StudentError, "SystemExit"),
    ("x = [0] * (1 << 60)", Ended, "memory"),
])  # fmt: skip
def test_definitions_that_fail_say_how_and_leave_nothing(source, kind, word):
    with pytest.raises(kind) as raised:
        JailSession(source, limits=SMALL, without_jail_for_my_own_code=True)
    assert word in f"{raised.type.__name__}: {raised.value}"


# -------------------------------------------------------------------------------- nothing is left


def family(process):
    """A process and all that descend from it."""
    with open(f"/proc/{process}/task/{process}/children") as children:
        return [process, *(one for child in children.read().split() for one in family(int(child)))]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("bare", [pytest.param(False, marks=needs_jail), True])
def test_no_process_is_left(bare):
    source = "import signal\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\n"
    source += "def f(): return 1"
    if bare:
        source += "\nimport subprocess; subprocess.Popen(['sleep', '60'])"
    student = JailSession(source, limits=SMALL, without_jail_for_my_own_code=bare)
    processes = family(student._process.pid)
    assert len(processes) >= 2
    student.close()
    assert soon(lambda: not any(os.path.exists(f"/proc/{number}") for number in processes))
    killed = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "killpg", lambda *a: killed.append(a))
        student.close()
    assert killed == []  # the number may be another's now


@pytest.mark.skipif(not hasattr(os, "setsid"), reason="no sessions of processes")
def test_a_process_that_left_the_group_does_not_hold_us(talker, monkeypatch):
    monkeypatch.setattr(ours, "END_SECONDS", 0.2)
    student = talker(
        "if os.fork(): time.sleep(60)\n"
        "os.setsid(); hear(); say(['answer', os.getpid(), {'dict': {}}, []]); time.sleep(6)"
    )
    left = student.call("f", [], {})[0]
    start = time.monotonic()
    student.close()
    assert time.monotonic() - start < 3
    os.kill(left, signal.SIGKILL)
    for thread in student._threads:
        thread.join(5)
    student._process.stdout.close()
    student._process.stderr.close()
