"""A bug hunt's test meets every implementation in a process in which none of the student's code has run."""

import pytest
from jails import SMALL, held, needs_jail, outcome

from tested_transformer.homework.jail.bubblewrap import Limits
from tested_transformer.homework.jail.session import Ended, JailSession

pytestmark = [needs_jail, pytest.mark.slow]

STUDENT = """
import builtins, ctypes, os, resource, signal, sys, time, torch

def keep(where):
    "How often this was called, as far as `where` knows."
    if where == "kept":
        open(where, "a").write("x")
        return len(open(where).read())
    kept = {"torch": torch.__dict__, "builtins": builtins.__dict__, "modules": sys.modules,
            "a generator": torch.default_generator.__class__.__dict__}.get(where, globals())
    kept["_mine"] = kept.get("_mine", 0) + 1
    return kept["_mine"]

def number(): return os.getpid()

def gradient():
    x = torch.ones(2, requires_grad=True)
    (x * x).sum().backward()
    return x.grad

def same(implementation):
    "The implementation that was served before this one, if it can be reached."
    return type(implementation)(implementation._worker, implementation._number - 1)()

def call(implementation): return implementation()

def work(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass

def open_files():
    names = [f"/proc/self/fd/{n}" for n in range(64)]
    return [os.readlink(name).partition(":")[0] for name in names if os.path.islink(name)]

def limits():
    names = ("RLIMIT_CORE", "RLIMIT_FSIZE", "RLIMIT_NOFILE")
    return [resource.getrlimit(getattr(resource, name)) for name in names]

def tried(attack):
    return str(eval(attack))

libc = ctypes.CDLL(None, use_errno=True)

def system(x86, aarch64, *arguments):
    "A system call by its number."
    number = aarch64 if os.uname().machine == "aarch64" else x86
    if libc.syscall(number, *[ctypes.c_long(n) for n in arguments]) == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

def write_into(process):
    "Write into another process, where this one has the same address."
    own = ctypes.create_string_buffer(b"mine")
    part = Part(ctypes.addressof(own), 4)
    if libc.process_vm_writev(process, ctypes.byref(part), 1, ctypes.byref(part), 1, 0) == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
"""


@pytest.fixture(scope="module")
def student():
    with JailSession(STUDENT, limits=SMALL, forks=True) as session:
        yield session


@pytest.mark.parametrize("where", ["torch", "builtins", "modules", "the notebook"])
def test_what_a_call_keeps_is_not_there_after_a_renewal(student, where):
    assert [student.call("keep", [where], {})[0] for _ in range(2)] == [1, 2]
    student.renew()
    assert student.call("keep", [where], {})[0] == 1


def test_each_has_a_number_of_its_own_and_gradients(student):
    numbers = []
    for _ in range(3):
        student.renew()
        numbers.append(student.call("number", [], {})[0])
        assert student.call("gradient", [], {})[0].tolist() == [2.0, 2.0]
    assert len(set(numbers)) == 3


def test_an_implementation_that_was_served_before_can_not_be_called(student):
    student.renew()
    student.serve(lambda: "the first")
    student.renew()
    second = student.serve(lambda: "the second")
    assert second == {"implementation": 0}
    assert student.call("call", [second], {})[0] == "the second"
    with pytest.raises(Ended, match="garbled"):
        student.call("same", [second], {})
    student._ended = None  # it ends a submission, and here all go on
    student.renew()


NO = "Operation not permitted"
REFUSED = {
    "a file": ("keep('kept')", "Read-only file system"),
    "a file's time": ("os.utime('.', (0, 0))", "Read-only file system"),
    "a process": ("os.fork()", NO),
    "a process by its number": ("system(57, 220, 17)", NO),
    "the worker's memory": ("open(f'/proc/{os.getppid()}/mem', 'rb')", "Permission denied"),
    "the worker's files": ("open(f'/proc/{os.getppid()}/fd/0', 'rb')", "Permission denied"),
    "to write into the worker": ("write_into(os.getppid())", NO),
    "the worker's limits": (
        "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (9, 9))", NO),
    "the worker's priority": ("os.setpriority(os.PRIO_PROCESS, os.getppid(), 5)", NO),
    "the worker's processors": ("os.sched_setaffinity(os.getppid(), {0})", NO),
    "a queue of messages": ("system(240, 180, 0, 0, 0, 0)", NO),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_nothing_can_be_left_for_the_next_process(student, name):
    attack, word = REFUSED[name]
    _, text = outcome(student, "tried", attack)
    assert word in text, text


def test_the_limits_of_a_jail_hold(student):
    student.renew()
    assert student.call("open_files", [], {})[0] == [*["/dev/null"] * 3, "socket"]
    small = [[0, 0], [SMALL.scratch_bytes] * 2, [SMALL.open_files] * 2]
    assert list(map(list, student.call("limits", [], {})[0])) == small
    assert outcome(student, "tried", "bytearray(1 << 30)")[0] == "memory"
    student._ended = None
    student.renew()


def test_a_renewal_leaves_as_many_threads_and_files_as_there_were(student):
    threads, files = held()
    for _ in range(3):
        student.renew()
    now = held()
    assert (len(now[0]), len(now[1])) == (len(threads), len(files))


@pytest.mark.usefixtures("nothing_is_left")
def test_the_time_of_a_processor_is_one_for_all():
    with JailSession(STUDENT, limits=Limits(cpu_seconds=2), forks=True) as student:
        student.call("work", [1.1], {})
        student.renew()
        student.call("work", [1.1], {})
        assert 2.1 < student.processor_seconds < 3.5
        with pytest.raises(Ended, match="timeout"):
            student.renew()
        with pytest.raises(Ended, match="timeout"):  # it stays ended
            student.call("number", [], {})


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize(
    ("attack", "flag"),
    [
        ("os._exit(3)", "ended itself"),
        ("os.kill(os.getpid(), 9)", "killed"),
        ("ctypes.string_at(0)", "killed"),
        ("[os.close(n) for n in range(3, 9)]", "ended itself"),
        ("[0 for _ in iter(int, 1)]", "timeout"),
        ("os.kill(os.getppid(), 19) or time.sleep(60)", "timeout"),
    ],
)
def test_how_a_process_ended_is_flagged(attack, flag):
    limits = Limits(wall_seconds=3.0, cpu_seconds=1)
    with JailSession(STUDENT, limits=limits, forks=True) as student:
        student.renew()
        with pytest.raises(Ended) as ended:
            student.call("tried", [attack], {})
        assert ended.value.flag == flag, ended.value.text


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize(("signal", "flag"), [(9, {"killed", "ended itself"}), (19, {"timeout"})])
def test_a_worker_that_the_student_ended_or_stopped_is_the_students_loss(signal, flag):
    with JailSession(STUDENT, limits=Limits(wall_seconds=3.0), forks=True) as student:
        outcome(student, "tried", f"os.kill(os.getppid(), {signal})")
        with pytest.raises(Ended) as ended:
            student.renew()
        assert ended.value.flag in flag, ended.value.text


def test_without_a_jail_it_is_the_same_process():
    bare = {"without_jail_for_my_own_code": True, "forks": True}
    with JailSession("import os\ndef number(): return os.getpid()", limits=SMALL, **bare) as own:
        before = own.call("number", [], {})[0]
        own.renew()
        assert own.call("number", [], {})[0] == before
