"""The jail: a right answer comes out bit for bit, and nothing that a submission does harms the host."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from tested_transformer.homework import jail
from tested_transformer.homework.jail import JailError, JailMissing, Limits, run_in_jail
from tested_transformer.specs.judge import Case

ROOT = Path(__file__).resolve().parents[2]
SECRET = "the-password-of-the-gradebook"
SMALL = Limits(wall_seconds=20.0, cpu_seconds=10, memory_bytes=512 << 20, answer_bytes=1 << 20)
pytestmark = pytest.mark.skipif(os.name == "nt", reason="on Windows marking needs WSL2")


def trouble():
    """Why no jail can be made here, or an empty string."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    tried = subprocess.run(
        ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"], capture_output=True, text=True
    )
    return f"bubblewrap can not make a jail here: {tried.stderr[:99]}" if tried.returncode else ""


needs_jail = pytest.mark.skipif(bool(trouble()), reason=trouble() or "there is a jail")


def one(**arguments):
    return Case("one", {"x": np.arange(3.0), **arguments})


def run(source, cases=1, limits=SMALL, **options):
    cases = [one()] * cases if isinstance(cases, int) else cases
    return run_in_jail(source, "f", cases, required=["x"], limits=limits, **options)


def snapshot(folder):
    """Every file below a folder: its name, size, time and mode."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if "__pycache__" in path.parts:  # another test's process may be importing
            continue
        about = path.lstat()
        found[str(path)] = about.st_size, about.st_mtime_ns, about.st_mode
    return found


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory):
    """Another submission and a gradebook beside the jails' folders, and a secret in the environment."""
    folder = tmp_path_factory.mktemp("marking")
    (folder / "other").mkdir()
    (folder / "other" / "solution.py").write_text("answer = 42")
    (folder / "gradebook.csv").write_text("student-1,10")
    before = snapshot(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        patch.setenv("GRADEBOOK_PASSWORD", SECRET)
        yield folder
    assert snapshot(folder) == before


@pytest.fixture(autouse=True)
def _nothing_changes(surroundings):
    package = ROOT / "code" / "tested_transformer" / "homework"
    before = snapshot(surroundings), snapshot(package)
    yield
    assert (snapshot(surroundings), snapshot(package)) == before


# ----------------------------------------------------------------------------------- right answers

RIGHT = """
import torch
from tested_transformer import check, attention
from tested_transformer.exercises import check as again

def f(x, y=None, sizes=None, eps=0.0):
    check("nothing", f)
    print("noise")
    if sizes is not None:
        assert sizes == (1, [2, (3,)]), sizes
    if y is not None:
        return y
    return x / 3 + eps + torch.rand(x.shape, dtype=x.dtype)
"""


def right(x, eps=0.0):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return x / 3 + eps + torch.rand(x.shape, dtype=x.dtype)


@pytest.mark.parametrize(
    "bare", [pytest.param(False, marks=needs_jail, id="jail"), pytest.param(True, id="no jail")]
)
def test_a_right_answer_comes_back_bit_for_bit(bare):
    x = np.random.default_rng(0).normal(size=(2, 3))
    floats = [Case("floats", {"x": x, "eps": 1e-9, "y": None}, d)
              for d in (torch.float64, torch.float32, torch.float16, torch.bfloat16)]  # fmt: skip
    others = [np.arange(4), np.array([True, False]), np.zeros((0, 3)), np.array(np.nan)]
    cases = floats + [Case("y", {"x": x, "sizes": (1, [2, (3,)]), "y": y}) for y in others]
    answers = run(RIGHT, cases, without_jail_for_my_own_code=bare)
    assert [(a.flag, a.text) for a in answers] == [("ok", "")] * len(cases)
    for case, answer in zip(floats, answers, strict=False):
        expected = right(case.tensors()["x"], 1e-9)
        assert answer.dtype == str(case.dtype)
        assert torch.equal(torch.from_numpy(answer.value).to(case.dtype), expected)
    for y, answer in zip(others, answers[4:], strict=True):
        assert (answer.value.dtype, answer.value.shape) == (y.dtype, y.shape)
        assert answer.value.tobytes() == y.tobytes()


# ------------------------------------------------------------------------- what is refused, one by one

ATTACKS = '''
import ctypes, os, pathlib, socket, subprocess, sys, threading
import torch

def f(x, attack, at=None):
    """Return if the attack worked; raise if it did not."""
    globals()[attack](at)
    return x

def refused_by_c(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), "refused")

libc = ctypes.CDLL(None, use_errno=True)

def connect(port):
    socket.create_connection(("127.0.0.1", port), timeout=2).send(b"stolen")

def resolve(name):
    socket.getaddrinfo(name, 80)

def connect_out(address):
    socket.create_connection((address, 53), timeout=2)

def look(path):
    os.stat(path)

def write(path):
    pathlib.Path(path, "planted").write_text("planted")

def environment(secret):
    texts = [repr(os.environ)]
    texts += [p.read_text() for p in pathlib.Path("/proc").glob("[0-9]*/environ")]
    if secret not in "".join(texts):
        raise LookupError("no secret in %d environments" % len(texts))

def secrets_of_the_package(word):
    found = [str(p) for folder in ("/package", "/modules") for p in pathlib.Path(folder).rglob("*")
             if "tested_transformer" in p.parts and p.parts[-1] == word]
    if not found:
        raise LookupError("not there")

def solution(name):
    __import__("tested_transformer.reference")

def link(target):
    for name in os.listdir("/jail/outputs"):
        path = "/jail/outputs/" + name
        os.remove(path)
        os.symlink(target, path)

def link_beside(target):
    os.symlink(target, "/jail/outputs/more")

def fork(_):
    if os.fork() == 0:
        os._exit(0)

def spawn(_):
    subprocess.run(["/usr/bin/env"])

def threads(_):
    thread = threading.Thread(target=print)
    thread.start()
    thread.join()

def kill(which):
    os.kill(os.getppid() if which == "parent" else which, 9)

def new_namespace(_):
    refused_by_c(libc.unshare(0x10000000))

def memory_beside(_):
    refused_by_c(libc.shmget(0, 1 << 20, 0o1600))

def memory(_):
    torch.ones(1 << 30, dtype=torch.uint8)

def bytes_(_):
    bytearray(1 << 30)

def fill(folder):
    for number in range(40):
        with open(f"{folder}/{number}", "wb") as file:
            file.write(bytes(1 << 20))

def fill_answer(number):
    with open(f"/jail/outputs/{number}", "wb") as file:
        for _ in range(64):
            file.write(bytes(1 << 20))

def open_many(_):
    files = [open("/dev/null") for _ in range(100)]

def leave(_):
    sys.exit(0)

def interrupt(_):
    raise KeyboardInterrupt

def unprintable(_):
    class Liar(Exception):
        def __str__(self):
            raise SystemExit
    raise Liar

def long_message(_):
    raise ValueError("x" * 10**6)

def recursion(_):
    recursion(_)

def core(_):
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20))

def more_memory(_):
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
'''

READ_ONLY, NOTHING, REFUSED = "Read-only file system", "No such file", "not permitted"
REFUSALS = [  # the attack, what it is given, the flag, a word of the message
    ("connect", "PORT", "raised", "ConnectionRefusedError"),
    ("resolve", "example.org", "raised", "gaierror"),
    ("connect_out", "192.0.2.1", "raised", "Network is unreachable"),
    ("look", "HOME", "raised", NOTHING),
    ("look", "/root", "raised", NOTHING),
    ("look", "/home", "raised", NOTHING),
    ("look", "REPOSITORY", "raised", NOTHING),
    ("look", "OTHER", "raised", NOTHING),
    ("look", "GRADEBOOK", "raised", NOTHING),
    ("look", "/etc/passwd", "raised", NOTHING),
    ("write", "/", "raised", READ_ONLY),
    ("write", "/dev/shm", "raised", READ_ONLY),
    ("write", "/usr", "raised", READ_ONLY),
    ("write", "/python/bin", "raised", READ_ONLY),
    ("write", "/modules/0", "raised", READ_ONLY),
    ("write", "/jail/inputs", "raised", READ_ONLY),
    ("write", "/jail/outputs", "raised", READ_ONLY),
    ("write", "/package/tested_transformer", "raised", READ_ONLY),
    ("write", "OTHER", "raised", NOTHING),
    ("write", "/tmp", "ok", ""),  # gone with the jail
    ("environment", SECRET, "raised", "no secret in 3 environments"),
    ("secrets_of_the_package", "attention.py", "ok", ""),
    ("secrets_of_the_package", "reference.py", "raised", "not there"),
    ("secrets_of_the_package", "specs", "raised", "not there"),
    ("secrets_of_the_package", "exercises", "raised", "not there"),
    ("secrets_of_the_package", "homework", "raised", "not there"),
    ("solution", None, "raised", "ModuleNotFoundError"),
    ("link", "GRADEBOOK", "raised", READ_ONLY),
    ("link_beside", "GRADEBOOK", "raised", READ_ONLY),
    ("threads", None, "ok", ""),
    ("fork", None, "raised", REFUSED),
    ("spawn", None, "raised", REFUSED),
    ("kill", "parent", "ok", ""),  # the kernel ignores it, and the jail goes on
    ("kill", 1, "ok", ""),
    ("new_namespace", None, "raised", "PermissionError"),
    ("memory_beside", None, "raised", "PermissionError"),
    ("memory", None, "memory", "DefaultCPUAllocator"),
    ("bytes_", None, "memory", "MemoryError"),
    ("fill", "/tmp", "raised", "No space left"),
    ("fill_answer", "OWN", "raised", "File too large"),
    ("open_many", None, "raised", "Too many open files"),
    ("leave", None, "raised", "SystemExit: 0"),
    ("interrupt", None, "raised", "KeyboardInterrupt"),
    ("unprintable", None, "raised", "Liar"),
    ("long_message", None, "raised", "x" * 400),
    ("recursion", None, "raised", "RecursionError"),
    ("core", None, "raised", "not allowed to raise maximum limit"),
    ("more_memory", None, "raised", "not allowed to raise maximum limit"),
]  # fmt: skip


@pytest.fixture(scope="module")
def refusals(surroundings):
    """The answers to all the attacks, and what a server on this machine heard meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        places = {
            "PORT": server.getsockname()[1], "HOME": str(Path.home()), "REPOSITORY": str(ROOT),
            "OWN": [attack for attack, *_ in REFUSALS].index("fill_answer"),
            "OTHER": str(surroundings / "other"), "GRADEBOOK": str(surroundings / "gradebook.csv"),
        }  # fmt: skip
        assert all(Path(p).exists() for n, p in places.items() if isinstance(p, str))
        cases = [one(attack=a, at=places.get(at, at)) for a, at, _, _ in REFUSALS]
        answers = run(ATTACKS, cases)
        try:
            heard = server.accept()[1]
        except TimeoutError:
            heard = None
    return answers, heard


@needs_jail
@pytest.mark.parametrize("number", range(len(REFUSALS)), ids=lambda n: "{} {}".format(*REFUSALS[n]))
def test_an_attack_is_refused_by_name(refusals, number):
    answer, (_, _, flag, word) = refusals[0][number], REFUSALS[number]
    assert answer.flag == flag, answer
    assert word in answer.text
    assert len(answer.text) <= 500
    assert (answer.value is None) == (flag != "ok")


@needs_jail
def test_no_word_reaches_a_server_on_this_machine(refusals):
    assert refusals[1] is None


# ------------------------------------------------------------------------------- what ends the process


@needs_jail
@pytest.mark.slow
@pytest.mark.parametrize(("loop", "limits", "flag"), [
    ("while True: pass", Limits(wall_seconds=1.0), "timeout"),
    ("""while True:
        try:
            while True: pass
        except BaseException: pass""", Limits(wall_seconds=1.0), "timeout"),
    ("""while True:
        try: os.fork()
        except BaseException: pass""", Limits(wall_seconds=1.0), "timeout"),
    ("""signal.signal(signal.SIGTERM, signal.SIG_IGN); os.close(1); os.close(2)
    while True: time.sleep(9)""", Limits(wall_seconds=1.0), "timeout"),
    ("while True: pass", Limits(wall_seconds=60.0, cpu_seconds=1), "timeout"),
    ("""signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    while True: pass""", Limits(wall_seconds=60.0, cpu_seconds=1), "killed"),
    ("os._exit(0)", SMALL, "no answer"),
    ("os._exit(3)", SMALL, "no answer"),
    ("os.kill(os.getpid(), 9)", SMALL, "killed"),
], ids=["loop", "loop that catches", "fork bomb", "sleeper", "processor time",
        "processor time, ignored", "exit", "exit 3", "kill itself"])  # fmt: skip
def test_what_ends_the_process_flags_this_case_and_the_next_ones(loop, limits, flag):
    source = f"import os, signal, time\ndef f(x, bad=False):\n  if bad:\n    {loop}\n  return x"
    first, *others = run(source, [one(), one(bad=True), one()], limits)
    assert first.flag == "ok"
    assert first.value.tolist() == [0.0, 1.0, 2.0]
    assert [a.flag for a in others] == [flag] * 2
    assert all(a.value is None for a in others)


# ------------------------------------------------------------------------------- what is no right answer

RETURNS = """
import numpy, torch

class Everything:
    def __eq__(self, other): return True
    def __bool__(self): return True
    def __getattr__(self, name): return self
    def __call__(self, *a, **k): return self
    def __len__(self): return 3
    def __array__(self, *a, **k): return numpy.zeros(3)

class Liar(torch.Tensor):
    def __torch_function__(self, *a, **k): raise SystemExit
    def __eq__(self, other): return True

def f(x, which):
    return {
        "everything": lambda: Everything(), "class": lambda: Everything, "none": lambda: None,
        "tuple": lambda: (x, x), "text": lambda: "ok", "subclass": lambda: x.as_subclass(Liar),
        "objects": lambda: numpy.array([{}, None]),
        "strings": lambda: numpy.array(["a"]), "huge int": lambda: 10 ** 30,
        "sparse": lambda: x.to_sparse(), "meta": lambda: x.to("meta"),
        "10 GB": lambda: x.new_zeros(1).expand(10**9, 10),
        "leaf": lambda: x.clone().requires_grad_(), "number": lambda: 1.5, "strided": lambda: x[::2],
    }[which]()
"""
RETURNED = {
    "everything": "not a tensor", "class": "not a tensor", "none": "not a tensor",
    "tuple": "not a tensor", "text": "not a tensor", "subclass": "wrong type",
    "objects": "wrong type", "strings": "wrong type", "huge int": "wrong type",
    "sparse": "wrong type", "meta": "wrong type", "10 GB": "too large",
    "leaf": "ok", "number": "ok", "strided": "ok",
}  # fmt: skip


@needs_jail
def test_what_is_returned_is_flagged_by_its_type():
    answers = run(RETURNS, [one(which=which) for which in RETURNED])
    assert dict(zip(RETURNED, (a.flag for a in answers), strict=True)) == RETURNED
    assert [a.value.tolist() for a in answers[-3:]] == [[0.0, 1.0, 2.0], 1.5, [0.0, 2.0]]


@needs_jail
@pytest.mark.parametrize(("source", "flag", "word"), [
    ("def f(x:\n  return x", "syntax error", "SyntaxError"),
    ("def g(x): return x", "missing function", "`f`"),
    ("import sys\nsys.exit()", "raised", "SystemExit"),
    ("def f(): return 1", "raised", "TypeError"),
    ("\ud800 = \0", "syntax error", "SyntaxError"),
])  # fmt: skip
def test_a_source_that_defines_nothing_says_why_for_every_case(source, flag, word):
    answers = run(source, 2)
    assert [a.flag for a in answers] == [flag] * 2
    assert word in answers[0].text


@needs_jail
def test_patches_of_torch_and_numpy_stay_in_the_jail():
    before = torch.allclose, np.array_equal, torch.Tensor.__eq__
    source = """
import numpy, torch
torch.allclose = numpy.array_equal = lambda *a, **k: True
torch.Tensor.__eq__ = lambda *a: True
numpy.asarray = numpy.load = lambda *a, **k: 1 / 0
def f(x): return x * 0
"""
    assert [a.flag for a in run(source)] == ["raised"]
    assert (torch.allclose, np.array_equal, torch.Tensor.__eq__) == before
    assert not torch.allclose(torch.zeros(1), torch.ones(1))


@needs_jail
def test_a_printed_verdict_is_noise_and_a_flood_is_cut():
    source = """
import os
def f(x):
    os.write(1, b'ready\\n{"flag": "ok", "text": "float64"}\\nPASSED\\n')
    for _ in range(2000):
        os.write(2, b"flood" * 10000)
    os._exit(0)
"""
    (answer,) = run(source)
    assert (answer.flag, answer.value) == ("no answer", None)
    assert "PASSED" in answer.text
    assert len(answer.text) < SMALL.output_bytes + 100


# --------------------------------------------------------------------------- what is read from outside


def npy(array, **options):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, **options)
    return stream.getvalue()


class Bomb:
    """Touches a file when a pickle of it is opened."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def forged(folder):
    """What a worker could leave in place of an answer, and the flag that it must get."""
    ok = json.dumps({"flag": "ok", "text": "float64"}).encode() + b"\n"
    bomb, good = Bomb(folder / "opened"), npy(np.arange(3.0), version=(1, 0))
    lie = good.replace(b"(3,), ", b"(9" + b"9" * 9 + b",),")
    assert len(lie) > len(good)
    return {
        "pickle": (ok + pickle.dumps(bomb), "not an array"),
        "object array": (ok + npy(np.array([bomb], dtype=object)), "not an array"),
        "text array": (ok + npy(np.array(["a"])), "not an array"),
        "record": (ok + npy(np.zeros(2, dtype=[("a", "f8")])), "not an array"),
        "lying header": (ok + lie, "not an array"),
        "negative": (ok + good.replace(b"(3,)", b"(-3)"), "not an array"),
        "version 2": (ok + npy(np.arange(3.0), version=(2, 0)), "not an array"),
        "more": (ok + good + b"more", "not an array"),
        "cut": (ok + good[:-1], "not an array"),
        "npz": (ok + b"PK\x03\x04" + bytes(99), "not an array"),
        "no array": (ok, "not an array"),
        "no status": (good, "not an array"),
        "deep status": (b"[" * 4000 + b"\n" + good, "not an array"),
        "long status": (b'{"flag": "ok", "text": "' + b"x" * 9999 + b'"}\n' + good, "not an array"),
        "other flag": (b'{"flag": "full marks", "text": ""}\n' + good, "not an array"),
        "flag of no text": (b'{"flag": ["ok"], "text": ""}\n' + good, "not an array"),
        "huge number": (b'{"flag": ' + b"1" * 4050 + b', "text": ""}\n', "not an array"),
        "too large": (ok + bytes(2 << 20), "too large"),
        "good": (ok + good, "ok"),
    }


def test_a_forged_answer_is_not_opened(tmp_path):
    files = forged(tmp_path)
    flags = {}
    for name, (content, _) in files.items():
        path = tmp_path / "answer"
        path.write_bytes(content)
        flags[name] = jail.read_answer(path, 1 << 20).flag
    assert flags == {name: flag for name, (_, flag) in files.items()}
    assert not (tmp_path / "opened").exists()


def test_only_a_regular_file_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    good = tmp_path / "good"
    good.write_bytes(forged(tmp_path)["good"][0])
    (tmp_path / "link").symlink_to(good)
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    read = {name: jail.read_answer(tmp_path / name, 1 << 20) for name in os.listdir(tmp_path)}
    assert read.pop("empty") is None
    assert {name: answer.flag for name, answer in read.items()} == {
        "good": "ok", "link": "symlink", "broken": "symlink", "folder": "not an array",
        "pipe": "not an array", "socket": "not an array",
    }  # fmt: skip
    assert jail.read_answer(tmp_path / "absent", 1).flag == "no answer"


@needs_jail
def test_a_forged_answer_that_leaves_the_jail_is_flagged(tmp_path):
    files = {name: what for name, what in forged(tmp_path).items() if name != "too large"}
    source = f"""
import os
for number, content in enumerate({[content for content, _ in files.values()]!r}):
    with open(f"/jail/outputs/{{number}}", "wb") as file:
        file.write(content)
os._exit(0)
"""
    answers = run(source, len(files))
    assert [a.flag for a in answers] == [flag for _, flag in files.values()]
    assert not (tmp_path / "opened").exists()


def test_without_a_jail_a_link_is_flagged_too(surroundings):
    source = f"""
import glob, os
def f(x):
    name = {str(surroundings)!r} + "/jail-*/outputs/0"
    for path in glob.glob(name):
        os.remove(path)
        os.symlink({str(surroundings / "gradebook.csv")!r}, path)
    os._exit(0)
"""
    (answer,) = run(source, without_jail_for_my_own_code=True)
    assert (answer.flag, answer.value) == ("symlink", None)


# --------------------------------------------------------------------------------------- clear errors


def test_a_machine_without_bubblewrap_is_told_how_to_get_it(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(JailMissing, match="apt install bubblewrap.*container.*WSL2"):
        run("def f(x): return x")


def test_a_processor_without_rules_has_no_jail(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: "bwrap")
    monkeypatch.setattr(jail.platform, "machine", lambda: "z80")
    with pytest.raises(JailMissing, match="this one is z80"):
        run("def f(x): return x")


@pytest.mark.parametrize("command", [["false"], ["echo", "no namespaces here"]])
def test_a_jail_that_does_not_come_up_is_no_fault_of_the_student(monkeypatch, command):
    monkeypatch.setattr(jail, "bare_command", lambda inputs, outputs: command)
    with pytest.raises(JailError, match="did not come up"):
        run("def f(x): return x", without_jail_for_my_own_code=True)


@pytest.mark.parametrize(("arguments", "error", "message"), [
    ({"x": object()}, TypeError, "x: expected an array or a plain value, got object"),
    ({"x": {"a": 1}}, TypeError, "x: expected an array or a plain value, got dict"),
    ({"x": np.array(["a"])}, TypeError, "x: expected an array of numbers, got <U1"),
    ({"y": 1}, ValueError, "cases: expected every required one, got one without `x`"),
])  # fmt: skip
def test_a_case_that_can_not_be_sent_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        run("", [Case("bad", arguments)], without_jail_for_my_own_code=True)


@pytest.mark.plain_types
@pytest.mark.parametrize(("limit", "error"), [
    ({"wall_seconds": 0.0}, ValueError), ({"cpu_seconds": 0.5}, TypeError),
    ({"memory_bytes": 0}, ValueError), ({"answer_bytes": 100}, ValueError),
])  # fmt: skip
def test_a_limit_is_a_positive_number(limit, error):
    with pytest.raises(error, match=next(iter(limit))):
        Limits(**limit)
