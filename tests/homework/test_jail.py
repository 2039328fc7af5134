"""The jail: what a submission may not do is refused by name, and nothing around it changes."""

import os
import platform
import shutil
import socket
import sys
import tempfile
from dataclasses import fields, replace
from pathlib import Path

import pytest
from jails import SMALL, needs_jail, outcome

from tested_transformer.homework.jail import bubblewrap as jail
from tested_transformer.homework.jail import session
from tested_transformer.homework.jail.bubblewrap import JailError, JailMissing, Limits
from tested_transformer.homework.jail.session import Ended, JailSession

ROOT = Path(__file__).resolve().parents[2]
SECRET = "the-password-of-the-gradebook"
pytestmark = pytest.mark.skipif(os.name == "nt", reason="on Windows marking needs WSL2")


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
    """Another submission and a gradebook, and a secret in the environment."""
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
    worker = list(jail.WORKER)
    before = snapshot(surroundings), [path.read_bytes() for path in worker]
    yield
    assert (snapshot(surroundings), [path.read_bytes() for path in worker]) == before


# ------------------------------------------------------------------------- what is refused, one by one

ATTACKS = '''
import ctypes, os, pathlib, socket, subprocess, sys, threading
import torch

def f(attack, at=None):
    """Return what the attack got; raise if it did not work."""
    return globals()[attack](at)

def refused_by_c(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

libc = ctypes.CDLL(None, use_errno=True)

def call(numbers):
    """A system call by its number: x86's, or aarch64's."""
    number = numbers[os.uname().machine == "aarch64"]
    return refused_by_c(libc.syscall(number, *[ctypes.c_long(n) for n in numbers[2:]]))

def connect(port):
    socket.create_connection(("127.0.0.1", port), timeout=2).send(b"stolen")

def resolve(name):
    socket.getaddrinfo(name, 80)

def connect_out(address):
    socket.create_connection((address, 53), timeout=2)

def abstract_socket(name):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(name)

def look(path):
    os.stat(path)

def write(path):
    pathlib.Path(path, "planted").write_text("planted")

def overwrite(path):
    os.close(os.open(path, os.O_WRONLY))

def delete(path):
    os.remove(path)

def link(target):
    os.symlink(target, "/jail/link")

def link_in_tmp(target):
    os.symlink(target, "link")  # where it stands it may write
    os.stat("link")

def environment(secret):
    texts = [repr(os.environ)]
    texts += [p.read_text() for p in pathlib.Path("/proc").glob("[0-9]*/environ")]
    if secret not in "".join(texts):
        raise LookupError("no secret in %d environments" % len(texts))

def processes(_):
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())

def package(_):
    """Every folder of the package's name, and what is in the jail of it."""
    folders = [p for top in ("/modules", "/python", "/usr", "/jail", "/tmp")
               for p, inside, _ in os.walk(top) if os.path.basename(p) == "tested_transformer"]
    return [sorted(os.listdir("/jail")), {p: os.listdir(p) for p in folders}]

def solution(name):
    sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "AbsentFinder"]
    sys.modules.pop("tested_transformer", None)
    __import__("tested_transformer.reference")

def descriptors(_):
    """What this process has open."""
    names = [f"/proc/self/fd/{n}" for n in range(64)]
    return sorted(os.readlink(n).partition(":")[0] for n in names if os.path.islink(n))

def capabilities(_):
    lines = open("/proc/self/status").read().splitlines()
    return {line.split()[0]: int(line.split()[1], 16) for line in lines if line.startswith("Cap")}

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

def mount(_):
    refused_by_c(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))

def unmount(path):
    refused_by_c(libc.umount2(path.encode(), 2))

def memory(_):
    torch.ones(1 << 30, dtype=torch.uint8)

def bytes_(_):
    bytearray(1 << 30)

def fill(folder):
    try:
        for number in range(40):
            with open(f"{folder}/{number}", "wb") as file:
                file.write(bytes(1 << 20))
    finally:
        for name in os.listdir(folder):
            os.remove(f"{folder}/{name}")

def large_file(path):
    with open(path, "wb") as file:
        file.truncate(1 << 30)

def memory_file(_):
    file = os.memfd_create("more")
    try:
        os.ftruncate(file, 1 << 30)
    finally:
        os.close(file)

def open_many(_):
    files = [open("/dev/null") for _ in range(100)]

def limits(_):
    import resource
    names = ("RLIMIT_CORE", "RLIMIT_FSIZE", "RLIMIT_NOFILE")
    return [resource.getrlimit(getattr(resource, name)) for name in names]

def raise_limit(name):
    import resource
    kind = getattr(resource, name)
    now = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (now + 1, now + 1))
'''

# One attack walks through all that is in the jail, some 40,000 folders: a busy machine may take a while.
PATIENT = replace(SMALL, wall_seconds=300.0, cpu_seconds=120)
READ_ONLY, NOTHING, NO = "Read-only file system", "No such file", "not permitted"
NEW_PROCESS = 17  # SIGCHLD: clone as fork does
REFUSALS = [  # the attack, what it is given, the exception or flag, a word of the message
    ("connect", "PORT", "ConnectionRefusedError", "refused"),
    ("resolve", "example.org", "gaierror", "Errno"),
    ("connect_out", "192.0.2.1", "OSError", "Network is unreachable"),
    ("abstract_socket", "SOCKET", "ConnectionRefusedError", "refused"),
    ("look", "HOME", "FileNotFoundError", NOTHING),
    ("look", "/root", "FileNotFoundError", NOTHING),
    ("look", "/home", "FileNotFoundError", NOTHING),
    ("look", "REPOSITORY", "FileNotFoundError", NOTHING),
    ("look", "OTHER", "FileNotFoundError", NOTHING),
    ("look", "GRADEBOOK", "FileNotFoundError", NOTHING),
    ("look", "/etc/passwd", "FileNotFoundError", NOTHING),
    ("look", "/sys/kernel", "FileNotFoundError", NOTHING),
    ("write", "/", "OSError", READ_ONLY),
    ("write", "/dev", "OSError", READ_ONLY),
    ("write", "/dev/shm", "OSError", READ_ONLY),
    ("write", "/usr", "OSError", READ_ONLY),
    ("write", "/python/bin", "OSError", READ_ONLY),
    ("write", "/modules/0", "OSError", READ_ONLY),
    ("write", "/modules/0/torch", "OSError", READ_ONLY),
    ("write", "/jail", "OSError", READ_ONLY),
    ("write", "OTHER", "FileNotFoundError", NOTHING),
    ("overwrite", "/jail/worker.py", "OSError", READ_ONLY),
    ("overwrite", "/jail/wire.py", "OSError", READ_ONLY),
    ("overwrite", "/modules/0/torch/__init__.py", "OSError", READ_ONLY),
    ("overwrite", "/proc/sys/kernel/core_pattern", "OSError", READ_ONLY),
    ("overwrite", "/proc/self/oom_score_adj", "OSError", READ_ONLY),
    ("delete", "/jail/worker.py", "OSError", ""),
    ("link", "GRADEBOOK", "OSError", READ_ONLY),
    ("link_in_tmp", "GRADEBOOK", "FileNotFoundError", NOTHING),
    ("environment", SECRET, "LookupError", "no secret in 3 environments"),
    ("solution", None, "ModuleNotFoundError", "tested_transformer"),
    ("fork", None, "PermissionError", NO),
    ("spawn", None, "PermissionError", NO),
    ("call", (57, 220, NEW_PROCESS), "PermissionError", NO),  # fork; on aarch64 clone
    ("call", (58, 220, NEW_PROCESS), "PermissionError", NO),  # vfork
    ("call", (56, 220, NEW_PROCESS), "PermissionError", NO),  # clone
    ("call", (56, 220, 0x10000000), "PermissionError", NO),  # clone, in a user namespace of its own
    ("call", (435, 435, 0, 0), "OSError", "not implemented"),  # clone3
    ("call", (101, 117, 0, 0, 0, 0), "PermissionError", NO),  # ptrace
    ("call", (272, 97, 0x10000000), "PermissionError", NO),  # unshare, a user namespace
    ("call", (308, 268, 0, 0), "PermissionError", NO),  # setns
    ("call", (29, 194, 0, 1 << 20, 0o1600), "PermissionError", NO),  # shmget
    ("call", (68, 186, 0, 0o1600), "PermissionError", NO),  # msgget
    ("call", (64, 190, 0, 1, 0o1600), "PermissionError", NO),  # semget
    ("call", (250, 219, 0, 0), "PermissionError", NO),  # keyctl
    ("call", (425, 425, 1, 0), "PermissionError", NO),  # io_uring_setup
    ("mount", None, "PermissionError", NO),
    ("unmount", "/usr", "PermissionError", NO),
    ("memory", None, "memory", "DefaultCPUAllocator"),
    ("bytes_", None, "memory", ""),
    ("fill", "/tmp", "OSError", "No space left"),
    ("large_file", "large", "OSError", "File too large"),
    ("memory_file", None, "OSError", "File too large"),
    ("open_many", None, "OSError", "Too many open files"),
    ("raise_limit", "RLIMIT_CORE", "ValueError", "not allowed to raise maximum limit"),
    ("raise_limit", "RLIMIT_AS", "ValueError", "not allowed to raise maximum limit"),
    ("raise_limit", "RLIMIT_CPU", "ValueError", "not allowed to raise maximum limit"),
]  # fmt: skip
if platform.machine() == "x86_64":  # the second set of numbers: getpid, as 32 bits see it
    REFUSALS.append(("call", (0x40000000 + 39, 0), "PermissionError", NO))
ALLOWED = [
    ("threads", None, None),
    ("write", "/tmp", None),  # gone with the jail
    ("kill", "parent", None),  # the kernel ignores it, and the jail goes on
    ("kill", 1, None),
    ("processes", None, [1, 2]),
    ("descriptors", None, ["/dev/null", "pipe", "pipe", "pipe", "pipe"]),
    (
        "capabilities",
        None,
        dict.fromkeys(("CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"), 0),
    ),
    ("limits", None, [(0, 0), (SMALL.scratch_bytes,) * 2, (SMALL.open_files,) * 2]),
    ("package", None, [["surroundings.py", "wire.py", "worker.py"], {}]),
]


@pytest.fixture(scope="module")
def answers(surroundings):
    """What each attack brought, and what servers on this machine heard meanwhile."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as local,
        JailSession(ATTACKS, limits=PATIENT) as attacker,
    ):
        local.bind("")  # a name that the kernel draws
        local.listen()
        places = {
            "PORT": server.getsockname()[1], "HOME": str(Path.home()), "REPOSITORY": str(ROOT),
            "OTHER": str(surroundings / "other"), "GRADEBOOK": str(surroundings / "gradebook.csv"),
            "SOCKET": local.getsockname().decode(),
        }  # fmt: skip
        assert all(Path(places[p]).exists() for p in ("HOME", "REPOSITORY", "OTHER", "GRADEBOOK"))
        found = {}
        for attack, at, *_ in [*REFUSALS, *ALLOWED]:
            given = places.get(at, at) if isinstance(at, str) else at
            found[attack, at] = outcome(attacker, "f", attack, given)
            attacker._ended = None  # lack of memory ends a submission, and here all go on
        heard = []
        for one in (server, local):
            one.settimeout(0.1)
            try:
                heard.append(one.accept())
            except TimeoutError:
                continue
    return found, heard


@needs_jail
@pytest.mark.parametrize(("attack", "at", "kind", "word"), REFUSALS)
def test_an_attack_is_refused_by_name(answers, attack, at, kind, word):
    came, text = answers[0][attack, at]
    assert came == kind, text
    assert word in text


@needs_jail
@pytest.mark.parametrize(("attack", "at", "answer"), ALLOWED)
def test_what_is_allowed_shows_nothing_of_ours(answers, attack, at, answer):
    assert answers[0][attack, at] == ("answer", answer)


@needs_jail
def test_no_word_reaches_a_server_on_this_machine(answers):
    assert answers[1] == []


@needs_jail
def test_the_package_is_hidden_where_it_is_installed(monkeypatch):
    """As if it were in the Python's own folder, and that in /usr: a part of Python plays its role."""
    name = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/wsgiref"
    monkeypatch.setattr(jail, "PACKAGE", Path(sys.base_prefix).resolve() / name)
    assert os.listdir(jail.PACKAGE)
    source = "import os\ndef f(path): return os.listdir(path)\n"
    source += "def g(path): open(path + '/planted', 'w')"
    with JailSession(source, limits=SMALL) as small:
        assert small.call("f", [f"/python/{name}"], {})[0] == []
        assert outcome(small, "g", f"/python/{name}")[0] == "OSError"


def test_every_place_of_the_package_is_hidden(monkeypatch, tmp_path):
    modules, other = tmp_path / "usr" / "lib" / "modules", tmp_path / "other"
    (modules / "tested_transformer").mkdir(parents=True)
    (other / "tested_transformer").mkdir(parents=True)
    monkeypatch.setattr(jail, "module_folders", lambda: [modules])
    folders = {"/usr": tmp_path / "usr", "/modules/0": modules, "/else": tmp_path / "else"}
    monkeypatch.setattr(jail, "PACKAGE", other / "tested_transformer")
    hidden = ["/modules/0/tested_transformer", "/usr/lib/modules/tested_transformer"]
    assert jail.hidden_packages(folders) == hidden
    assert jail.hidden_packages({**folders, "/other": other}) == [
        "/modules/0/tested_transformer", "/other/tested_transformer", hidden[1],
    ]  # fmt: skip


# --------------------------------------------------------------------------------------- clear errors


def test_a_machine_without_bubblewrap_is_told_how_to_get_it(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(JailMissing, match="apt install bubblewrap.*container.*WSL2"):
        JailSession("def f(x): return x")


def test_a_processor_without_rules_has_no_jail(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: "bwrap")
    monkeypatch.setattr(jail.platform, "machine", lambda: "z80")
    with pytest.raises(JailMissing, match="this one is z80"):
        JailSession("def f(x): return x")


@pytest.mark.parametrize(("command", "said"), [
    (["false"], r"did not come up \(1\): $"), (["true"], "did not come up"),
    (["cat", "/no namespaces here"], "no namespaces here"),
    (["echo", "ready"], "did not come up"), (["sleep", "60"], r"did not come up \(-9\)"),
    (["yes"], "did not come up"),
])  # fmt: skip
def test_a_jail_that_does_not_come_up_is_no_fault_of_the_student(monkeypatch, command, said):
    monkeypatch.setattr(session, "bare_command", lambda: command)
    monkeypatch.setattr(session, "START_SECONDS", 0.5)
    with pytest.raises(JailError, match=said):
        JailSession("def f(x): return x", without_jail_for_my_own_code=True)


@needs_jail
def test_a_jail_that_bubblewrap_refuses_says_why(monkeypatch):
    monkeypatch.setattr(jail, "system_mounts", lambda: ["--ro-bind", "/no such folder", "/usr"])
    with pytest.raises(JailError, match="no such folder"):
        JailSession("def f(x): return x")


@pytest.mark.plain_types
@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
def test_a_limit_is_a_positive_number(name):
    with pytest.raises(ValueError, match=name):
        Limits(**{name: 0})
    with pytest.raises(TypeError, match=name):
        Limits(**{name: True})
    with pytest.raises(TypeError, match=name):
        Limits(**{name: "1"})


@pytest.mark.plain_types
def test_only_seconds_on_the_wall_may_be_a_fraction():
    assert Limits(wall_seconds=0.5).wall_seconds == 0.5
    with pytest.raises(TypeError, match="cpu_seconds"):
        Limits(cpu_seconds=0.5)


def test_ended_is_no_exception_that_the_judge_would_report():
    assert not issubclass(Ended, Exception)
